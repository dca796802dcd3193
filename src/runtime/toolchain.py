#!/usr/bin/env python3
"""Stands in for Emscripten when cargo builds for wasm32-unknown-emscripten; the work is done by zig's clang and lld.

    toolchain.py cc|ar|ld ARGUMENTS...      (INPAGE_ZIG: the zig command)

`ld` takes the command line that rustc writes for `emcc` and links an Emscripten side module: a position-independent
library with a `dylink.0` section whose undefined symbols the main module (Pyodide) provides.
"""

import json
import os
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path

# In Pyodide's main module already.
PROVIDED = {"c", "m", "unwind", "c++", "c++abi"}


def compile_command(arguments: list[str]) -> list[str]:
    """zig knows no headers for Emscripten; WASI's come from the same C library and agree on everything in ISO C.

    One object with extended constant expressions would let the linker use them, which engines of early 2023 refuse.
    """
    kept = [argument for argument in arguments if not argument.startswith("--target=")]
    return ["cc", "-target", "wasm32-wasi", "-mcpu=generic-extended_const", "-fPIC", "-fvisibility=hidden", *kept]


def expanded(arguments: list[str]) -> Iterator[str]:
    """Arguments with rustc's response files (`@path`) replaced by their contents."""
    for argument in arguments:
        if argument.startswith("@"):
            yield from expanded(shlex.split(Path(argument[1:]).read_text()))
        else:
            yield argument


def link_command(arguments: list[str]) -> list[str]:
    """The wasm-ld command for an emcc command line. Settings that only concern emcc's JavaScript are dropped."""
    words = expanded(arguments)
    inputs: list[str] = []
    exports: list[str] = []
    output = "a.out.wasm"
    for word in words:
        if word in ("-o", "-l", "-L", "-s"):
            word += next(words)
        if word.startswith("-o"):
            output = word[2:]
        elif word.startswith("-sEXPORTED_FUNCTIONS="):
            exports = [name.removeprefix("_") for name in json.loads(word.partition("=")[2])]
        elif word.startswith("-Wl,"):
            inputs += word.split(",")[1:]
        elif word.startswith("-L") or (word.startswith("-l") and word[2:] not in PROVIDED) or not word.startswith("-"):
            inputs.append(word)
    return [
        *("wasm-ld", "-shared", "--experimental-pic", "--unresolved-symbols=import-dynamic", "--no-entry"),
        *("--gc-sections", "-Bsymbolic", "--no-export-dynamic", "--strip-all"),
        *("--export-if-defined=__wasm_call_ctors", "--export-if-defined=__wasm_apply_data_relocs"),
        *(f"--export={name}" for name in exports if name.startswith("PyInit_")),
        *inputs,
        *("-o", output),
    ]


def main() -> None:
    tool, *arguments = sys.argv[1:]
    commands = {"cc": compile_command, "ar": lambda arguments: ["ar", *arguments], "ld": link_command}
    zig = shlex.split(os.environ["INPAGE_ZIG"])
    os.execvp(zig[0], [*zig, *commands[tool](arguments)])


if __name__ == "__main__":
    main()
