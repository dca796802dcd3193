#!/usr/bin/env python3
"""Sets up, builds, fetches the models, and runs the checks and all tests.

python3 tests/run.py                     everything
python3 tests/run.py tests/unit -k lock  with arguments: pytest alone, which gets them
"""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from tests import environment, models  # noqa: E402

CHECKS = (
    ("ruff", "check", "--quiet"),
    ("ruff", "format", "--check", "--quiet"),
    ("pyright",),
    ("node_modules/.bin/tsc", "--project", "."),
    ("node_modules/.bin/tsc", "--project", "worker"),
)


def check(command: tuple[str, ...]) -> bool:
    """Run one check; what it prints is shown when it fails."""
    result = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    print(f"{' '.join(command)}: {'failed' if result.returncode else 'ok'}", flush=True)
    if result.returncode:
        print(result.stdout, flush=True)
    return result.returncode == 0


def main() -> int:
    environment.ensure()
    import build_wheels

    arguments = sys.argv[1:]
    checks = [check(command) for command in CHECKS if not arguments]
    build_wheels.build("runtime")
    if not arguments:
        environment.install_other_browsers()
        for name in models.MODELS:
            models.path(name)
    tested = subprocess.run([sys.executable, "-m", "pytest", *arguments], cwd=ROOT).returncode
    return tested or (0 if all(checks) else 1)


if __name__ == "__main__":
    sys.exit(main())
