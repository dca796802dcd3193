#!/usr/bin/env python3
"""Write reference.json: what transformers (5.24.0 when this was written) does with the cases.

python -m tests.golden.tokenizers.make_reference      (needs `pip install transformers==5.24.0`)
"""

import json
import tempfile
from pathlib import Path
from typing import Any

from tests.golden.tokenizers.cases import CALLED, VARIANTS, call, calls, describe


def main() -> None:
    from transformers import AutoTokenizer  # pyright: ignore[reportMissingImports]

    reference: dict[str, Any] = {"variants": {}, "calls": {}}
    for name, variant in VARIANTS.items():
        with tempfile.TemporaryDirectory() as folder:
            variant.build(Path(folder))
            tokenizer = AutoTokenizer.from_pretrained(folder, **variant.options)
        reference["variants"][name] = describe(tokenizer)
        if name in CALLED:
            reference["calls"][name] = [
                {"arguments": arguments, "options": options, "result": call(tokenizer, arguments, options)}
                for arguments, options in calls(CALLED[name])
            ]
    path = Path(__file__).parent / "reference.json"
    path.write_text(json.dumps(reference, ensure_ascii=False, separators=(",", ":")))
    print(path, path.stat().st_size)


if __name__ == "__main__":
    main()
