"""The gate of a pull request: from what its workflows left behind to one comment and one status.

``collect FOLDER`` finds the pull request of the event and lays out the records of its runs and of
the nights; ``publish FOLDER`` says what `python -m reports compare` made of them. report.yml runs
both, from main and with the right to write, so nothing here is code of a pull request, and what
comes from one (names of branches, artifacts, records, the page) is data: never a path, a command or
a part of a URL as it is. Standard library only; GitHub is asked through ``gh api``.
"""

import json
import os
import re
import shutil
import subprocess
import sys
import zipfile
import zlib
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

CONTEXT: Final = "kernel-gate"
MARKER: Final = "<!-- kernel-gate -->"
AUTHOR: Final = "github-actions[bot]"
HOSTED: Final = "pull-request"
PARTS: Final = {  # workflows that leave records, by the file that they are in
    f".github/workflows/{name}.yml": name for name in (HOSTED, "pull-request-gpu")
}
SIDES: Final = ("base", "head")
NIGHTLY: Final = "nightly"
NIGHTS: Final = 30
LABELS: Final = {"perf-accepted": "perf", "gpu-waived": "gpu"}
STATES: Final = {
    "passed": "success",
    "warned": "success",
    "failed": "failure",
    "unusable": "failure",
    "undecided": "pending",
}

MEBIBYTE: Final = 1 << 20
ZIPPED: Final = 20 * MEBIBYTE  # of one artifact
UNZIPPED: Final = 64 * MEBIBYTE
FILES: Final = 32
METHODS: Final = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)
RECORD: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,80}\.jsonl")
COMMIT: Final = re.compile(r"[0-9a-f]{40}")
DESCRIPTION: Final = 140  # characters of a status, GitHub's limit
BODY: Final = 65_536  # characters of a comment, GitHub's limit

Json = Any


class ArtifactError(ValueError):
    """An artifact that is not what our workflows upload: one line that says why."""


@dataclass(frozen=True)
class Pull:
    """The open pull request whose head is the commit of the event."""

    number: int
    head: str
    merge_base: str
    accept: tuple[str, ...]


@dataclass(frozen=True)
class Collected:
    """What ``collect`` leaves for ``publish``.

    ``waiting``: for what, empty where all is there. ``refused``: which artifacts, and why.
    """

    pull: Pull
    waiting: str = ""
    refused: tuple[str, ...] = ()


# --- GitHub --------------------------------------------------------------------------------------


def repository() -> str:
    return os.environ["GITHUB_REPOSITORY"]


def api(path: str, method: str = "GET", body: Json = None) -> Json:
    """One call below this repository. Raises CalledProcessError where GitHub refuses."""
    command = ["gh", "api", "--method", method, f"repos/{repository()}/{path}"]
    given = None
    if body is not None:
        command += ["--input", "-"]
        given = json.dumps(body).encode()
    answer = subprocess.run(command, input=given, stdout=subprocess.PIPE, check=True).stdout
    return json.loads(answer) if answer else None


def pages(path: str, key: str = "", most: int = 10) -> Iterator[Json]:
    """The entries of a list, page by page: of the answer itself or below its ``key``."""
    joint = "&" if "?" in path else "?"
    for page in range(1, most + 1):
        answer = api(f"{path}{joint}per_page=100&page={page}")
        entries = answer[key] if key else answer
        yield from entries
        if len(entries) < 100:
            return


# --- the pull request ----------------------------------------------------------------------------


def source_of(event: Json) -> tuple[str, str]:
    """The repository that the head is in, empty where it is gone, and the commit."""
    run = event["workflow_run"]
    return (run["head_repository"] or {}).get("full_name", ""), run["head_sha"]


def find(event: Json) -> Pull | None:
    """By the head's repository, branch and commit, as a fork's run names no pull request.

    None where there is none that is open against the default branch, or its head has moved on: a
    later run speaks for it then.
    """
    source, commit = source_of(event)
    branch = event["workflow_run"]["head_branch"]
    if not source or not COMMIT.fullmatch(commit):
        return None
    whose = quote(f"{source.partition('/')[0]}:{branch}", safe=":")
    base = quote(event["repository"]["default_branch"], safe="")
    for pull in pages(f"pulls?state=open&base={base}&head={whose}"):
        there = pull["head"]["repo"]  # None where the fork is gone
        if there and there["full_name"] == source and pull["head"]["sha"] == commit:
            parting = api(f"compare/{pull['base']['sha']}...{commit}?per_page=1")
            labels = {label["name"] for label in pull["labels"]}
            accept = tuple(what for name, what in LABELS.items() if name in labels)
            return Pull(pull["number"], commit, parting["merge_base_commit"]["sha"], accept)
    return None


# --- artifacts -----------------------------------------------------------------------------------


def newest_runs(event: Json) -> dict[str, Json]:
    """Of each workflow that leaves records, the newest run of this head.

    A workflow is known by its file: any workflow may have any name.
    """
    source, commit = source_of(event)
    runs = pages(f"actions/runs?event=pull_request&head_sha={commit}", "workflow_runs")
    return {
        PARTS[file_of(run)]: run
        for run in sorted(runs, key=lambda run: int(run["id"]))
        if file_of(run) in PARTS
        and run["head_sha"] == commit
        and (run["head_repository"] or {}).get("full_name") == source
    }


def file_of(run: Json) -> str:
    """Without the branch that GitHub may put behind it."""
    return str(run["path"]).partition("@")[0]


def artifacts(run: Json) -> dict[str, Json]:
    """By name; of several attempts, the last."""
    found = pages(f"actions/runs/{run['id']}/artifacts", "artifacts")
    return {
        each["name"]: each
        for each in sorted(found, key=lambda each: each["id"])
        if not each["expired"]
    }


def fetch(artifact: Json, folder: Path) -> None:
    """Download and unpack. Raises ArtifactError, and then leaves no folder."""
    name, size = artifact["name"], artifact["size_in_bytes"]
    if size > ZIPPED:
        raise ArtifactError(f"artifact {name} has {size:,} bytes; {ZIPPED:,} are the most")
    folder.mkdir(parents=True)
    archive = folder.with_suffix(".zip")
    path = f"repos/{repository()}/actions/artifacts/{artifact['id']}/zip"
    with archive.open("wb") as out:
        subprocess.run(["gh", "api", path], stdout=out, check=True)
    try:
        unpack(archive, folder)
    except ArtifactError as refused:
        shutil.rmtree(folder)
        raise ArtifactError(f"artifact {name}: {refused}") from None
    finally:
        archive.unlink()


def unpack(archive: Path, folder: Path) -> None:
    """Records and nothing else, side by side; a zip says itself how large it is, and is held to it.

    Raises ArtifactError for anything that an upload of records is not.
    """
    try:
        with zipfile.ZipFile(archive) as zipped:
            members = zipped.infolist()
            if len(members) > FILES:
                raise ArtifactError(f"{len(members)} files; {FILES} are the most")
            if sum(member.file_size for member in members) > UNZIPPED:
                raise ArtifactError(f"more than {UNZIPPED:,} bytes, unpacked")
            for member in members:
                if not RECORD.fullmatch(member.filename):
                    raise ArtifactError(f"{member.filename[:80]!r} is no name of a record")
                if member.compress_type not in METHODS:
                    raise ArtifactError("compressed in a way that upload-artifact does not")
                # A piece at a time: the sizes above are what the file says of itself.
                with zipped.open(member) as inside, (folder / member.filename).open("xb") as out:
                    shutil.copyfileobj(inside, out, MEBIBYTE)
    except FileExistsError:
        raise ArtifactError("two files have one name") from None
    except (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, RuntimeError) as error:
        raise ArtifactError(f"no sound zip file ({error})") from None


def nights() -> Iterator[Json]:
    """The artifacts of the last nights on main, the newest first.

    A pull request may run a nightly.yml of its own, on a branch that it calls main; what the clock
    has started is main's.
    """
    workflow = f"actions/workflows/{NIGHTLY}.yml/runs"
    query = f"event=schedule&branch=main&status=completed&per_page={NIGHTS}"
    for run in api(f"{workflow}?{query}")["workflow_runs"]:
        ours = run["event"] == "schedule" and run["head_branch"] == "main"
        if ours and (night := artifacts(run).get("night")):
            yield night


# --- collect -------------------------------------------------------------------------------------


def collect(folder: Path) -> None:
    """Lay out ``base/``, ``head/`` and ``history/`` in the folder, and what is to know of them.

    ``history/`` is there if there is a night in it.
    """
    event = json.loads(Path(os.environ["GITHUB_EVENT_PATH"]).read_text(encoding="utf-8"))
    pull = find(event)
    if pull is None:
        print("::notice::no open pull request has this head any more; nothing to say")
        return
    for side in SIDES:
        (folder / side).mkdir(parents=True)
    collected = lay_out(pull, newest_runs(event), folder)
    (folder / "collected.json").write_text(json.dumps(asdict(collected)), encoding="utf-8")
    if not collected.waiting and not collected.refused:
        with Path(os.environ["GITHUB_OUTPUT"]).open("a", encoding="utf-8") as output:
            print(f"commit={pull.head}", f"accept={' '.join(pull.accept)}", sep="\n", file=output)


def lay_out(pull: Pull, runs: dict[str, Json], folder: Path) -> Collected:
    hosted = runs.get(HOSTED)
    if hosted is None or hosted["status"] != "completed":
        return Collected(pull, waiting=f"waiting for the workflow {HOSTED}")
    refused = list[str]()
    for workflow, run in runs.items():
        there = artifacts(run)
        for side in SIDES:
            if artifact := there.get(f"records-{side}"):
                try:
                    fetch(artifact, folder / side / workflow)
                except ArtifactError as reason:
                    refused.append(f"{workflow}: {reason}")
    for night in nights():
        try:
            fetch(night, folder / "history" / str(night["id"]))
        except ArtifactError as reason:
            print(f"::warning::a night is left out: {reason}")
    return Collected(pull, refused=tuple(refused))


# --- publish -------------------------------------------------------------------------------------


def publish(folder: Path) -> None:
    """Set the status and, where there is a page, the comment; nothing if the head moved on."""
    if not (folder / "collected.json").exists():
        return
    held = json.loads((folder / "collected.json").read_text(encoding="utf-8"))
    collected = Collected(Pull(**held["pull"]), held["waiting"], tuple(held["refused"]))
    pull = collected.pull
    if api(f"pulls/{pull.number}")["head"]["sha"] != pull.head:
        print("::notice::the head moved on meanwhile; nothing to say")
        return
    state, description, page = decide(collected, folder)
    run = f"{repository()}/actions/runs/{os.environ['GITHUB_RUN_ID']}"
    status = {
        "state": state,
        "context": CONTEXT,
        "description": shortened(description),
        "target_url": f"{os.environ['GITHUB_SERVER_URL']}/{run}",
    }
    api(f"statuses/{pull.head}", "POST", status)
    if page:
        comment(pull.number, f"{MARKER}\n{page}"[:BODY])


def decide(collected: Collected, folder: Path) -> tuple[str, str, str]:
    """State and description of the status, and the page, empty where there is none to show."""
    if collected.waiting:
        return "pending", collected.waiting, ""
    if collected.refused:
        lines = "\n".join(f"    {line}" for line in collected.refused)
        return "failure", collected.refused[0], f"## ❌ Records that cannot be used\n\n{lines}\n"
    try:
        report = json.loads((folder / "report.json").read_text(encoding="utf-8"))
        page = (folder / "report.markdown").read_text(encoding="utf-8")
    except (OSError, ValueError):
        return "failure", "the comparison itself failed; its run says why", ""
    base = (report["base"] or {}).get("commit", "")
    if base and base != collected.pull.merge_base:
        said = (
            f"base's records are of {base[:12]}, the merge base is {collected.pull.merge_base[:12]}"
        )
        return "failure", f"{said}: run pull-request again", page
    return STATES[report["decision"]], report["headline"], page


def comment(number: int, body: str) -> None:
    """One a pull request, known by its marker and by who wrote it: anybody can write a marker."""
    for each in pages(f"issues/{number}/comments"):
        if each["user"]["login"] == AUTHOR and each["body"].startswith(MARKER):
            api(f"issues/comments/{each['id']}", "PATCH", {"body": body})
            return
    api(f"issues/{number}/comments", "POST", {"body": body})


def shortened(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= DESCRIPTION else line[: DESCRIPTION - 1] + "…"


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["collect", folder]:
            collect(Path(folder))
        case ["publish", folder]:
            publish(Path(folder))
        case _:
            sys.exit("usage: python .github/gate.py collect|publish FOLDER")
