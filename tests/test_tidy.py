"""Checks the style of the repository, beyond what linters check."""

import ast
import functools
import re
import subprocess
import sys
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]

LONGEST_FUNCTION = 60
MOST_ATTRIBUTES = 15
MOST_METHODS = 20
# Functions that are longer, each with the reason.
LONG_FUNCTIONS = {
    "korvet/records/kernel/batches.py _convert": "one loop over a reply, with its state in C variables",
}
# Classes that have more attributes or methods, each with the reason.
LARGE_CLASSES = {
    "korvet/api/common/services.py Services": "declares one service in each attribute",
    "korvet/api/fetching/partition.py FetchedPartition": "slots of the hot path of Fetch",
    "korvet/api/fetching/pending_fetch.py PendingFetch": "one automaton, with its table in the header",
    "korvet/config/broker_settings.py BrokerSettings": "declares one setting in each attribute",
    "korvet/config/settings.py Config": "declares one setting in each attribute",
    "korvet/config/share_settings.py ShareSettings": "declares one setting in each attribute",
    "korvet/config/topic_settings.py TopicSettings": "declares one setting in each attribute",
    "korvet/coordinator/partitions.py Partitions": "the coordinator's table of served partitions",
    "korvet/coordinator/projector.py Projector": "one queue of projections with its limits",
    "korvet/coordinator/served.py ServedPartition": "one method for each request of a group",
    "korvet/coordinator/service.py CoordinatorService": "one method for each request of a group",
    "korvet/coordinator/term.py Term": "one method for each kind of change in a term",
    "korvet/embedded/server.py EmbeddedServer": "the life of one process",
    "korvet/groups/config.py GroupConfig": "declares one setting in each attribute",
    "korvet/groups/consumer/group.py ConsumerGroup": "the state of one group, as its records have it",
    "korvet/groups/consumer/membership.py ConsumerMembership": "the handlers of one state machine",
    "korvet/groups/group.py Group": "the state of one group, as its records have it",
    "korvet/groups/membership.py Membership": "the handlers of one state machine",
    "korvet/groups/shard.py GroupShard": "one method for each request of a group",
    "korvet/observe/parts.py Parts": "declares one part of the broker in each attribute",
    "korvet/protocol/registry.py Api": "declares the facts of one API",
    "korvet/server/connection.py Connection": "the protocol class of one connection",
    "korvet/cluster/catalogue.py Catalogue": "one method for each command on the catalogue",
    "korvet/log/compaction/compactor.py Compactor": "the steps of one pass",
    "korvet/redis/cluster.py Cluster": "the links to all nodes of one cluster",
    "korvet/redis/connection.py Connection": "the protocol class of one connection",
    "korvet/redis/link.py RedisLink": "one connection with its queue and its reconnects",
    "korvet/redis/server.py Server": "the links to one server, all in one history",
    "korvet/redis/server_facts.py ServerFacts": "declares one fact of a server in each attribute",
    "korvet/log/appender.py Appender": "the order of all appends of one partition",
    "korvet/log/partition_log.py PartitionLog": "the facade of one partition's log",
    "korvet/log/release.py Release": "what each kind of append waits for",
    "korvet/log/state.py LogState": "what a leader knows of one partition's log",
    "korvet/log/broker_logs.py Logs": "the logs of all partitions of a broker",
    "korvet/topics/directory.py TopicDirectory": "one method for each change of a topic",
    "korvet/transactions/shard.py TransactionShard": "the handlers of one state machine",
    "robustness/checkers/facts.py Facts": "one method for each kind of event",
    "robustness/simulation/faults.py Faults": "one method for each fault",
    "robustness/simulation/redis/replication.py Replication": "one simulated server's replication",
    "robustness/simulation/transport.py SimulatedTransport": "implements asyncio's transport",
    "robustness/story.py Story": "one method for each kind of event",
    "spark/cli/export_options.py ExportOptions": "declares one option in each attribute",
    "spark/records/kernel/rows.py Rows": "one buffer for each column",
    "spark/source/settings.py SourceOptions": "declares one option in each attribute",
    "spark/tables/batch_tables.py Views": "one method for each table",
    "tests/property/test_native_machine.py NativeMachine": "one rule for each command",
    "tests/spark/reckoning/history.py History": "one method for each kind of event",
    "tests/storage/test_log_model.py LogMachine": "one rule for each command",
    "tests/storage/test_share_model.py ShareMachine": "one rule for each command",
    "korvet/testing/broker.py KorvetBroker": "one method for each thing that a test does",
}
# The widest line of Lua; no formatter checks Lua.
WIDEST_LUA = 120

LUA_FUNCTION = re.compile(r"^local function (\w+).*?^end$", re.MULTILINE | re.DOTALL)

TEXT_SUFFIXES = {
    ".py",
    ".pxd",
    ".pyi",
    ".c",
    ".h",
    ".lua",
    ".md",
    ".toml",
    ".yml",
    ".yaml",
    ".sh",
    ".java",
    ".js",
    ".mjs",
    ".go",
    ".mod",
    ".sum",
    ".xml",
    "",
}
# Recorded from other programs, so exempt from the style.
DATA = "tests/data/"

# Composed of parts, so that this file doesn't break its own rules.
UNFINISHED = re.compile(r"\b(" + "TO" + r"DO|FIX" + r"ME|XX" + r"X|HA" + r"CK)\b")
MACHINE_PATHS = re.compile(r"(?<![\w./-])/(" + "ro" + r"ot|ho" + r"me/\w+|wo" + r"rk|Us" + r"ers/\w+)/[\w.]")
REGISTRIES = re.compile(
    r"\b(pypi"
    + r"\.org|files\.python"
    + r"hosted\.org|registry\.npm"
    + r"js\.org|repo1?\.mav"
    + r"en\.(apache\.)?org|"
    r"crates" + r"\.io|proxy\.gol" + r"ang\.org|deb\.deb" + r"ian\.org)\b"
)
# Lines that may contain such an import; the syntax tree decides.
SECOND_COPY = re.compile(r"^\s*(import|from)\s+(.*,\s*)?(offsets|spark)\b", re.MULTILINE)
BANNER = re.compile(r"^\s*(#|//|--)\s*[-=*#~]{4,}|^\s*(#|//|--)\s*[-=*#~]{2,}.*[-=*#~]{2,}\s*$")


@functools.cache
def tracked() -> list[Path]:
    listed = subprocess.run(
        ["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout
    paths = [ROOT / name for name in listed.split("\0") if name and not name.startswith(DATA)]
    return [
        path for path in paths if path.is_file() and not path.is_symlink() and path.suffix in TEXT_SUFFIXES
    ]


def sources() -> list[Path]:
    return [path for path in tracked() if path.suffix == ".py"]


@functools.cache
def parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text("utf-8"))


def lines(path: Path) -> Iterator[tuple[str, str]]:
    name = path.relative_to(ROOT)
    for number, line in enumerate(path.read_text("utf-8").splitlines(), 1):
        yield f"{name}:{number}", line


@pytest.fixture(scope="module", autouse=True)
def _in_a_checkout() -> None:
    if not (ROOT / ".git").exists():
        pytest.skip("needs the repository: the files that git tracks are checked")


@pytest.mark.parametrize(
    ("rule", "pattern"),
    [
        ("unfinished work", UNFINISHED),
        ("a path of one machine", MACHINE_PATHS),
        ("a package registry's host name", REGISTRIES),
        ("a banner comment", BANNER),
    ],
)
def test_no_line_has(rule: str, pattern: re.Pattern[str]) -> None:
    found = [where for path in tracked() for where, line in lines(path) if pattern.search(line)]
    assert not found, f"{rule}: {found}"


def test_no_generated_file_is_tracked() -> None:
    command = ["git", "ls-files", "--cached", "--ignored", "--exclude-standard"]
    ignored = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    assert not ignored


def test_every_module_says_what_it_is() -> None:
    silent = []
    for path in sources():
        tree = parsed(path)
        if tree.body and ast.get_docstring(tree) is None:
            silent.append(str(path.relative_to(ROOT)))
    assert not silent


def test_functions_are_short() -> None:
    """A longer function does more than one thing."""
    long = {
        f"{path.relative_to(ROOT)} {node.name}"
        for path in sources()
        for node in ast.walk(parsed(path))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and (node.end_lineno or node.lineno) - node.lineno >= LONGEST_FUNCTION
    }
    assert long == set(LONG_FUNCTIONS)


def attributes(cls: ast.ClassDef) -> set[str]:
    """Returns the fields that a class declares, and the attributes that its methods assign to `self`."""
    found = {
        node.target.id
        for node in cls.body
        if isinstance(node, ast.AnnAssign)
        and isinstance(node.target, ast.Name)
        and "ClassVar" not in ast.unparse(node.annotation)
    }
    for method in methods(cls):
        own = method.args.args[0].arg if method.args.args else None
        found |= {
            node.attr
            for node in ast.walk(method)
            if isinstance(node, ast.Attribute)
            and isinstance(node.ctx, ast.Store)
            and isinstance(node.value, ast.Name)
            and node.value.id == own
        }
    return found


def methods(cls: ast.ClassDef) -> list[ast.FunctionDef | ast.AsyncFunctionDef]:
    """Returns the functions in the body of a class."""
    return [node for node in cls.body if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]


def test_classes_are_small() -> None:
    """A larger class has more state or more doors than a reader can hold."""
    large = {
        f"{path.relative_to(ROOT)} {node.name}"
        for path in sources()
        for node in ast.walk(parsed(path))
        if isinstance(node, ast.ClassDef)
        and (len(methods(node)) > MOST_METHODS or len(attributes(node)) > MOST_ATTRIBUTES)
    }
    assert large == set(LARGE_CLASSES)


def test_attributes_are_those_of_the_object() -> None:
    source = (
        "class A:\n    a: int\n    b: ClassVar[int]\n    def f(self, other):\n        self.c = other.d = 1"
    )
    (cls,) = ast.parse(source).body
    assert isinstance(cls, ast.ClassDef)
    assert attributes(cls) == {"a", "c"}


def test_functions_of_lua_are_short() -> None:
    long = [
        f"{path.relative_to(ROOT)} {function[1]}"
        for path in tracked()
        if path.suffix == ".lua"
        for function in LUA_FUNCTION.finditer(path.read_text("utf-8"))
        if function[0].count("\n") >= LONGEST_FUNCTION
    ]
    assert not long


def test_lines_of_lua_are_short() -> None:
    wide = [
        where
        for path in tracked()
        if path.suffix == ".lua"
        for where, line in lines(path)
        if len(line) > WIDEST_LUA
    ]
    assert not wide


def test_public_names_have_docstrings() -> None:
    silent = []
    for path in sources():
        name = str(path.relative_to(ROOT))
        if name.startswith(("tests/", "benchmarks/", "robustness/")):
            continue
        for node in parsed(path).body:
            if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                continue
            if not node.name.startswith("_") and ast.get_docstring(node) is None:
                silent.append(f"{name}:{node.lineno} {node.name}")
    assert not silent


def test_no_second_copy_of_a_package_is_imported() -> None:
    """`offsets` and `spark` are top-level folders, but are imported as korvet.offsets and korvet.spark."""
    found = []
    for path in sources():
        if not SECOND_COPY.search(path.read_text("utf-8")):
            continue
        for node in ast.walk(parsed(path)):
            names: list[str] = []
            if isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom) and node.level == 0:
                names = [node.module or ""]
            where = str(path.relative_to(ROOT))
            found += [f"{where}: {name}" for name in names if name.partition(".")[0] in ("offsets", "spark")]
    assert not found


def modules() -> dict[str, Path]:
    """Returns the modules of the product by name."""
    found = {}
    for path in sources():
        parts = path.relative_to(ROOT).with_suffix("").parts
        if parts[0] in ("offsets", "spark"):
            parts = ("korvet", *parts)
        if parts[0] == "korvet":
            found[".".join(parts).removesuffix(".__init__")] = path
    return found


def imported(path: Path, known: Collection[str]) -> set[str]:
    """Returns the product's modules that a module imports, for types or at run time."""
    names: set[str] = set()
    for node in ast.walk(parsed(path)):
        if isinstance(node, ast.Import):
            names.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module is not None:
            inner = [f"{node.module}.{alias.name}" for alias in node.names]
            names.update(name if name in known else node.module for name in inner)
    return names & set(known)


def circles(imports: Mapping[str, Collection[str]]) -> list[list[str]]:
    """Returns groups of modules that import each other, directly or not."""
    reached: dict[str, set[str]] = {}
    for start in imports:
        seen: set[str] = set()
        ahead = [start]
        while ahead:
            new = set(imports[ahead.pop()]) - seen
            seen |= new
            ahead += new
        reached[start] = seen
    found = {
        frozenset(other for other in seen if start in reached[other])
        for start, seen in reached.items()
        if start in seen
    }
    return sorted(sorted(circle) for circle in found)


def test_no_modules_import_each_other() -> None:
    known = modules()
    found = circles({name: imported(path, known) - {name} for name, path in known.items()})
    assert not found


def test_circles_are_found() -> None:
    assert circles({"a": ["b"], "b": ["c"], "c": ["b"], "d": ["d", "a"]}) == [["b", "c"], ["d"]]


def test_imports_go_one_way() -> None:
    program = Path(sys.executable).with_name("lint-imports")
    done = subprocess.run([program, "--no-cache"], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize(
    ("pattern", "line"),
    [
        (UNFINISHED, "# TO" + "DO: later"),
        (MACHINE_PATHS, 'open("/ho' + 'me/someone/file")'),
        (REGISTRIES, "https://pypi" + ".org/simple"),
        (BANNER, "# ---- part" + " two ----"),
        (BANNER, "#####" + "####"),
    ],
)
def test_the_rules_find_what_they_forbid(pattern: re.Pattern[str], line: str) -> None:
    assert pattern.search(line)
