"""The self-hosted runtime under Node.js, where `fetch` fails: everything must come from the folder."""

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

import build_wheels

PAGE = """
import { loadPyodide } from "./pyodide.mjs";
globalThis.fetch = (address) => { throw new Error(`asked for ${address}`); };
const pyodide = await loadPyodide({ indexURL: process.argv[2], stdout: (line) => console.error(line) });
await pyodide.loadPackage(process.argv[3].split(","));
console.log(await pyodide.runPythonAsync(process.argv[4]));
"""
TOKENIZE = """
import json, sys
import inpage
from tokenizers import Tokenizer, models, pre_tokenizers

tokenizer = Tokenizer(models.WordPiece({"[UNK]": 0, "na": 1, "##ïve": 2, "🙂": 3}, unk_token="[UNK]"))
tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
encoding = tokenizer.encode("naïve 🙂 other")
try:
    encoding.truncate(1, stride=5)
except BaseException as error:
    panic = type(error).__name__
again = tokenizer.encode("naïve").ids
json.dumps([encoding.ids, encoding.offsets, encoding.word_ids, panic, again, sorted(sys.modules)])
"""


@pytest.fixture(scope="module")
def runtime(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("dist")
    build_wheels.build("runtime", folder)
    (folder / "runtime" / "page.mjs").write_text(PAGE)
    return folder / "runtime"


def in_pyodide(runtime: Path, packages: str, code: str) -> Any:
    """The JSON value that the code ends with."""
    command = ["node", str(runtime / "page.mjs"), f"{runtime}/", packages, code]
    result = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert result.returncode == 0, result.stderr[-2000:]
    return json.loads(result.stdout.splitlines()[-1])


def test_loading_inpage_brings_tokenizers_from_the_folder(runtime: Path) -> None:
    ids, offsets, words, panic, again, modules = in_pyodide(runtime, "inpage", TOKENIZE)
    assert ids == [1, 2, 3, 0]
    assert offsets == [[0, 2], [2, 5], [6, 7], [8, 13]]
    assert words == [0, 0, 1, 2]
    assert "numpy" not in modules
    # A panic unwinds into Python, and the interpreter goes on.
    assert panic == "PanicException"
    assert again == [1, 2]
