"""Builds and runs module_fuzz.c: the server module under sanitizers, without a server.

`./dev run python -m tests.fuzz.harness RUNS` searches for inputs that reach new code, and prints the smallest
set of them as lines for corpus.txt.
"""

from __future__ import annotations

import os
import shutil
import struct
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import IO, TYPE_CHECKING, Final, NamedTuple

import pytest

import korvet.redis.module

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

HERE: Final = Path(__file__).parent
SOURCE: Final = HERE / "module_fuzz.c"
CORPUS: Final = HERE / "corpus.txt"
MODULE: Final = Path(korvet.redis.module.__file__).with_name("korvet_module.c")
# libFuzzer is a part of clang.
COMPILERS: Final = ("clang", "gcc", "cc")
FLAGS: Final = ("-std=c11", "-g", "-O1", "-fno-sanitize-recover=all")
SANITIZERS: Final = "address,undefined"
# The stub counts what is not freed. A small quarantine and no stacks of allocations make it twice as fast.
SANITIZER_OPTIONS: Final = "detect_leaks=0:malloc_context_size=0:quarantine_size_mb=4"
LONGEST_INPUT: Final = 4096
SIZE: Final = struct.Struct("=I")
_COMPILATION_S: Final = 120
_SHOWN: Final = 4000


class Answer(NamedTuple):
    """What the module did with an input."""

    given: bytes
    arguments: bytes
    """Entry ID, timestamps, caller, stream, malformed argument: see module_fuzz.c."""
    reply: bytes
    """* with the spans, : and the bytes of the largest entry; or -error."""
    entries: bytes
    """XADD commands, one for each entry."""

    @property
    def line(self) -> str:
        """The input as a line of the corpus."""
        return self.given.hex()


class Harness:
    """The compiled programs. `module` is the source of the module."""

    def __init__(self, compiler: str, folder: Path, module: Path = MODULE) -> None:
        self.compiler = compiler
        self._folder = folder
        self._module = module
        self._answers = self._build("answers", SANITIZERS, "-DANSWERS")

    def _build(self, name: str, sanitizers: str, *options: str) -> Path:
        program = self._folder / name
        # The changed copies of the module include its header as it is.
        places = [f"-I{self._module.parent}", f"-I{MODULE.parent}", f"-I{HERE}"]
        command = [self.compiler, *FLAGS, f"-fsanitize={sanitizers}", *options, *places]
        done = subprocess.run(
            [*command, str(SOURCE), "-o", str(program)],
            capture_output=True,
            text=True,
            check=False,
            timeout=_COMPILATION_S,
        )
        assert done.returncode == 0, done.stderr[-_SHOWN:]
        return program

    def replay(self, inputs: Sequence[bytes]) -> list[Answer]:
        """What the module does with these inputs."""
        return list(self._run(inputs, "replay"))

    def mutate(self, inputs: Sequence[bytes], count: int, seed: int) -> Iterator[Answer]:
        """What the module does with `count` changed inputs."""
        return self._run(inputs, "mutate", str(count), str(seed))

    def _run(self, inputs: Sequence[bytes], *arguments: str) -> Iterator[Answer]:
        with tempfile.TemporaryFile() as given, tempfile.TemporaryFile() as errors:
            given.writelines(SIZE.pack(len(one)) + one for one in inputs)
            given.seek(0)
            process = subprocess.Popen(
                [self._answers, *arguments], stdin=given, stdout=subprocess.PIPE, stderr=errors, env=environ()
            )
            assert process.stdout is not None
            last = b""
            try:
                with process.stdout as output:
                    while last_input := next_part(output):
                        last = last_input
                        chosen, reply, entries = (next_part(output) for _ in range(3))
                        if not reply:
                            # The program has ended within an answer.
                            break
                        yield Answer(last, chosen, reply, entries)
            except BaseException:
                process.kill()
                raise
            finally:
                process.wait()
            errors.seek(0)
            report = errors.read().decode(errors="replace")
            assert process.returncode == 0, f"after {last.hex()}:\n{report[:_SHOWN]}"

    def explore(self, inputs: Sequence[bytes], runs: int, *options: str) -> list[bytes]:
        """Run libFuzzer. Returns the inputs that it keeps; an input that ends the program fails the test."""
        program = self._build("explore", f"fuzzer,{SANITIZERS}")
        found, kept = self._folder / "found", self._folder / "kept"
        for folder in (found, kept):
            folder.mkdir(exist_ok=True)
        for number, one in enumerate(inputs):
            (found / str(number)).write_bytes(one)
        command = [str(program), f"-max_len={LONGEST_INPUT}", f"-artifact_prefix={self._folder}/", *options]
        self._libfuzzer([*command, f"-runs={runs}", str(found)])
        self._libfuzzer([*command, "-merge=1", str(kept), str(found)])
        return [path.read_bytes() for path in sorted(kept.iterdir())]

    def _libfuzzer(self, command: list[str]) -> None:
        log = self._folder / "explore.log"
        with log.open("wb") as output:
            done = subprocess.run(command, stdout=output, stderr=output, env=environ(), check=False)
        crashes = [path.read_bytes().hex() for path in self._folder.glob("crash-*")]
        shown = log.read_text(errors="replace")
        assert done.returncode == 0, f"inputs {crashes}:\n{shown[-_SHOWN:]}"


def next_part(output: IO[bytes]) -> bytes:
    """The next part of an answer; empty at the end."""
    head = output.read(SIZE.size)
    return output.read(SIZE.unpack(head)[0]) if head else b""


def environ() -> dict[str, str]:
    """The variables of a program with sanitizers."""
    return {**os.environ, "ASAN_OPTIONS": SANITIZER_OPTIONS}


def find_compiler(sanitizers: str = SANITIZERS) -> str | None:
    """The first compiler that can build a program with these sanitizers."""
    code = "#include <stddef.h>\n#include <stdint.h>\n"
    code += "int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) { return !data && size; }\n"
    if "fuzzer" not in sanitizers:
        code += "int main(void) { return LLVMFuzzerTestOneInput(NULL, 0); }\n"
    for name in COMPILERS:
        if shutil.which(name) is None:
            continue
        command = [name, f"-fsanitize={sanitizers}", "-x", "c", "-", "-o", os.devnull]
        done = subprocess.run(command, input=code.encode(), capture_output=True, check=False)
        if done.returncode == 0:
            return name
    return None


def has_fuzzer(compiler: str) -> bool:
    """Whether this compiler has libFuzzer."""
    return find_compiler(f"fuzzer,{SANITIZERS}") == compiler


def corpus() -> list[bytes]:
    """The inputs that are kept in the repository."""
    lines = CORPUS.read_text("ascii").splitlines()
    return [bytes.fromhex(line) for line in lines if line and not line.startswith("#")]


def main() -> None:
    """See the module's docstring."""
    compiler = find_compiler(f"fuzzer,{SANITIZERS}")
    if compiler is None:
        raise SystemExit("no compiler with libFuzzer (clang)")
    with tempfile.TemporaryDirectory() as folder:
        kept = Harness(compiler, Path(folder)).explore(corpus(), int(sys.argv[1]))
    sys.stdout.writelines(f"{one.hex()}\n" for one in sorted(kept, key=lambda one: (len(one), one)))


if __name__ == "__main__":
    main()


@pytest.fixture(scope="module")
def harness(tmp_path_factory: pytest.TempPathFactory) -> Harness:
    """The module under sanitizers."""
    compiler = find_compiler()
    if compiler is not None:
        return Harness(compiler, tmp_path_factory.mktemp("harness"))
    reason = "no C compiler with AddressSanitizer and UBSan"
    if os.environ.get("KORVET_REQUIRE_EXT", "") not in {"", "0"}:
        pytest.fail(reason)
    pytest.skip(reason)
