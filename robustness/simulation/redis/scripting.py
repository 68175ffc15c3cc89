"""Redis Functions in an embedded Lua 5.1, the version that Redis has.

Lua code is compiled once per process. A script runs for one server at a time: `Scripts.call` names it.
"""

from __future__ import annotations

import functools
import math
import re
import struct
from typing import TYPE_CHECKING, Any, Final

from lupa.lua51 import LuaRuntime, lua_type

from robustness.simulation.redis.values import Fault, Status

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    Call = Callable[[list[bytes]], Any]

# The parts of `redis` that need no server. A failed `redis.call` ends the script with the fault.
_PRELUDE: Final = b"""
local call, attempt, pack, unpack_ = ...
redis = {
  call = call,
  pcall = attempt,
  error_reply = function(text) return { err = text } end,
  status_reply = function(text) return { ok = text } end,
  LOG_WARNING = 3,
  log = function() end,
}
struct = { pack = pack, unpack = unpack_ }
"""
_HEADER: Final = re.compile(rb"#!lua name=(\w+)\n")
_ITEM: Final = re.compile(r"([<>=]?)(?:([bBhHiIlL])(\d*)|([df]))")
_SIZES: Final = {1: "b", 2: "h", 4: "i", 8: "q"}
_NATURAL: Final = {"b": 1, "h": 2, "i": 4, "l": 8}


class Function:
    """One registered function."""

    __slots__ = ("callback", "may_exceed_memory", "writes")

    def __init__(self, callback: Any, flags: frozenset[bytes]) -> None:
        self.callback = callback
        self.writes = b"no-writes" not in flags
        self.may_exceed_memory = b"allow-oom" in flags


class Scripts:
    """The Lua of this process. Use `scripts()`."""

    def __init__(self) -> None:
        self._lua = LuaRuntime(
            encoding=None, unpack_returned_tuples=True, register_eval=False, register_builtins=False
        )
        self._call: Call | None = None
        self._registered: dict[bytes, Function] = {}
        self._compiled: dict[bytes, Any] = {}
        self._lua.execute(_PRELUDE, self._run, self._attempt, _pack, _unpack)
        self._lua.globals()[b"redis"][b"register_function"] = self._register

    def load(self, source: bytes) -> tuple[bytes, dict[bytes, Function]]:
        """Run the code of a library. Returns its name and its functions. Raises Fault."""
        header = _HEADER.match(source)
        if header is None:
            raise Fault("ERR Missing library metadata")
        chunk = self._compiled.get(source)
        if chunk is None:
            chunk = self._compiled[source] = self._lua.compile(source[header.end() :])
        self._registered = {}
        chunk()
        return header[1], self._registered

    def call(self, function: Function, keys: Sequence[bytes], args: Sequence[bytes], run: Call) -> Any:
        """Call a function; its commands go to `run`. Returns the reply. Raises Fault."""
        before, self._call = self._call, run
        try:
            return self._reply(function.callback(self._lua.table(*keys), self._lua.table(*args)))
        finally:
            self._call = before

    def _register(self, first: Any, callback: Any = None) -> None:
        if callback is not None:
            self._registered[first] = Function(callback, frozenset())
            return
        flags = first[b"flags"]
        names = frozenset() if flags is None else frozenset(flags.values())
        self._registered[first[b"function_name"]] = Function(first[b"callback"], names)

    def _run(self, *args: Any) -> Any:
        assert self._call is not None
        return self._value(self._call([_argument(each) for each in args]))

    def _attempt(self, *args: Any) -> Any:
        try:
            return self._run(*args)
        except Fault as fault:
            return self._lua.table_from({b"err": str(fault).encode()})

    def _value(self, reply: Any) -> Any:
        """A reply as a script sees it."""
        if reply is None:
            return False
        if isinstance(reply, list):
            return self._lua.table(*[self._value(each) for each in reply])
        if isinstance(reply, Status):
            return self._lua.table_from({b"ok": bytes(reply)})
        return reply

    def _reply(self, value: Any) -> Any:
        """The reply of a script's result. Raises Fault for an error reply."""
        if value is None or value is False:
            return None
        if value is True:
            return 1
        if isinstance(value, float):
            return int(value)
        if lua_type(value) != "table":
            return value
        if value[b"err"] is not None:
            raise Fault(value[b"err"].decode("utf-8", "replace"))
        if value[b"ok"] is not None:
            return Status(value[b"ok"])
        found, at = [], 1
        while (each := value[at]) is not None:
            found.append(self._reply(each))
            at += 1
        return found


@functools.cache
def scripts() -> Scripts:
    """The Lua of this process."""
    return Scripts()


def _argument(value: Any) -> bytes:
    """An argument of redis.call: Redis writes numbers with 17 digits."""
    if isinstance(value, bytes):
        return value
    if isinstance(value, int) and not isinstance(value, bool):
        return b"%d" % value if abs(value) < 10**17 else b"%.17g" % value
    if isinstance(value, float):
        return b"%.17g" % value
    raise Fault("ERR Lua redis lib command arguments must be strings or integers")


@functools.cache
def _format(text: bytes) -> struct.Struct:
    """The format of Lua's struct library as one of Python's."""
    order, letters = "<", []
    for prefix, letter, size, number in _ITEM.findall(text.decode()):
        order = prefix or order
        if number:
            letters.append(number)
            continue
        width = int(size) if size else _NATURAL[letter.lower()]
        code = _SIZES[width]
        letters.append(code.upper() if letter.isupper() else code)
    return struct.Struct(order + "".join(letters))


def _pack(text: bytes, *values: float) -> bytes:
    form = _format(text)
    if "d" in form.format:
        return form.pack(*values)
    return form.pack(*map(int, values))


def _unpack(text: bytes, data: bytes, position: float = 1) -> tuple[Any, ...]:
    """The values, each as the double that Lua has, and the position after them."""
    form = _format(text)
    start = int(position) - 1
    if start + form.size > len(data):
        raise Fault("ERR data string too short")
    found = [_number(each) for each in form.unpack_from(data, start)]
    return (*found, start + form.size + 1)


def _number(value: float) -> float:
    return value if math.isnan(value) or abs(value) < 2**53 else float(value)
