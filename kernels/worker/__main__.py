"""``python -m kernels.worker``: write docs/worker-protocol.json, the schema of the messages."""

from kernels.worker.declaration import ROOT
from kernels.worker.protocol import schema_text

if __name__ == "__main__":
    (ROOT / "docs" / "worker-protocol.json").write_text(schema_text(), encoding="utf-8")
