"""A GitHub that answers `gh api` from a file and writes down what it was asked to change."""

import io
import json
import zipfile
from dataclasses import dataclass, field
from typing import Any, Final

from suites.selftest.ci.workflows import Shell

REPOSITORY: Final = "ours/sparse-conformance"
FORK: Final = "stranger/sparse-conformance"
HEAD, BASE, TIP = "a" * 40, "b" * 40, "c" * 40
PULL_RUN, GPU_RUN = 101, 102
HOSTED, GPU = ".github/workflows/pull-request.yml", ".github/workflows/pull-request-gpu.yml"

Json = Any

# Knows the calls that it was given and no other, as GitHub knows its addresses. Bash, as a test
# makes many.
GH: Final = """#!/bin/bash
[ "$1" = api ] || exit 64
method=GET body=null
while shift; [ $# -gt 0 ]; do
    case "$1" in
    --method) method="$2"; shift ;;
    --input) body="$(cat)"; shift ;;
    *) path="$1" ;;
    esac
done
printf '%s\\t%s\\t%s\\n' "$method" "$path" "$body" >> {here}/asked
[ "$method" = GET ] || exit 0
cat "{here}/answers/${{path//\\//%}}" 2> /dev/null && exit
echo "gh: Not Found (HTTP 404): $path" >&2
exit 1
"""


def zipped(files: dict[str, str], method: int = zipfile.ZIP_DEFLATED) -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", method) as archive:
        for name, text in files.items():
            archive.writestr(name, text)
    return out.getvalue()


def run(number: int, path: str, source: str, status: str = "completed") -> dict[str, Json]:
    return {
        "id": number,
        "path": path,
        "head_sha": HEAD,
        "head_repository": {"full_name": source},
        "status": status,
    }


RECORDS: Final = {"cpu.jsonl": "{}\n", "compile.jsonl": "{}\n"}


@dataclass
class GitHub:
    """One pull request, of a fork unless ``source`` says otherwise, and what has run for it.

    ``artifacts``: by run, name to zip file. ``nights``: the runs that the list of nights shows.
    """

    shell: Shell
    source: str = FORK
    head: str = HEAD
    head_later: str = HEAD  # when it is asked for again, before anything is published
    branch: str = "faster/witness&per_page=1"
    labels: tuple[str, ...] = ()
    runs: list[dict[str, Json]] = field(default_factory=list)
    artifacts: dict[int, dict[str, bytes]] = field(default_factory=dict)
    sizes: dict[str, int] = field(default_factory=dict)  # that GitHub tells, by artifact
    nights: list[dict[str, Json]] = field(default_factory=list)
    comments: list[dict[str, Json]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.shell.program("gh", GH.format(here=self.shell.folder))
        both = {f"records-{side}": zipped(RECORDS) for side in ("base", "head")}
        self.runs = [run(PULL_RUN, HOSTED, self.source), run(GPU_RUN, f"{GPU}@main", self.source)]
        self.artifacts = {PULL_RUN: dict(both), GPU_RUN: dict(both)}

    def event(self) -> dict[str, Json]:
        """A fork's: GitHub names no pull request in it."""
        return {
            "repository": {"full_name": REPOSITORY, "default_branch": "main"},
            "workflow_run": {
                "head_repository": {"full_name": self.source},
                "head_branch": self.branch,
                "head_sha": HEAD,
                "pull_requests": [],
            },
        }

    def answers(self) -> dict[str, Json]:
        owner = self.source.partition("/")[0]
        page = "per_page=100&page=1"
        pull = {
            "number": 7,
            "labels": [{"name": name} for name in self.labels],
            "head": {"sha": self.head, "repo": {"full_name": self.source}},
            "base": {"sha": TIP},
        }
        cousin = {**pull, "number": 6, "head": {"sha": HEAD, "repo": {"full_name": "other/fork"}}}
        gone = {**pull, "number": 5, "head": {"sha": HEAD, "repo": None}}
        branch = self.branch.replace("/", "%2F").replace("&", "%26").replace("=", "%3D")
        answers: dict[str, Json] = {
            f"pulls?state=open&base=main&head={owner}:{branch}&{page}": [gone, cousin, pull],
            "pulls/7": {"head": {"sha": self.head_later}},
            f"compare/{TIP}...{HEAD}?per_page=1": {"merge_base_commit": {"sha": BASE}},
            f"actions/runs?event=pull_request&head_sha={HEAD}&{page}": {"workflow_runs": self.runs},
            "actions/workflows/nightly.yml/runs"
            "?event=schedule&branch=main&status=completed&per_page=30": {
                "workflow_runs": self.nights
            },
            f"issues/7/comments?{page}": self.comments,
        }
        for number, artifacts in self.artifacts.items():
            listed: list[Json] = []
            for name, content in artifacts.items():
                identity = number * 1000 + len(listed)
                answers[f"actions/artifacts/{identity}/zip"] = content
                listed.append(
                    {
                        "id": identity,
                        "name": name,
                        "expired": False,
                        "size_in_bytes": self.sizes.get(name, len(content)),
                    }
                )
            answers[f"actions/runs/{number}/artifacts?{page}"] = {"artifacts": listed}
        return {f"repos/{REPOSITORY}/{path}": answer for path, answer in answers.items()}

    def lay_ready(self) -> dict[str, str]:
        """Write the answers down; the variables that a step of the workflow finds."""
        folder = self.shell.folder
        (folder / "answers").mkdir(exist_ok=True)
        for path, answer in self.answers().items():
            content = answer if isinstance(answer, bytes) else json.dumps(answer).encode()
            (folder / "answers" / path.replace("/", "%")).write_bytes(content)
        (folder / "event.json").write_text(json.dumps(self.event()), encoding="utf-8")
        return {
            **self.shell.environment(),
            "GITHUB_EVENT_PATH": str(folder / "event.json"),
            "GITHUB_REPOSITORY": REPOSITORY,
            "GITHUB_SERVER_URL": "https://github.com",
            "GITHUB_RUN_ID": "999",
        }

    @property
    def asked(self) -> list[list[Json]]:
        """Every call: method, path below the repository, body."""
        log = self.shell.folder / "asked"
        lines = log.read_text(encoding="utf-8").splitlines() if log.exists() else []
        calls = [line.split("\t", 2) for line in lines]
        start = f"repos/{REPOSITORY}/"
        return [
            [method, path.removeprefix(start), json.loads(body)] for method, path, body in calls
        ]

    @property
    def changed(self) -> list[list[Json]]:
        return [each for each in self.asked if each[0] != "GET"]
