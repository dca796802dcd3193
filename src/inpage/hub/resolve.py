"""Where the files of a repository are: in a hub, in a folder on the web, or in a folder on disk.

Names that come from outside (file names of an index, the subfolder, the revision) are checked here, so that none of
them leads out of the repository.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from urllib.parse import quote, urljoin, urlsplit

from ..env import IN_BROWSER, IN_NODE, env
from ..errors import ConfigError, InputError
from ..runtime import IN_PYODIDE
from .disk import host_folder

_HUB_PART = r"[A-Za-z0-9_](?:[A-Za-z0-9_.-]{0,94}[A-Za-z0-9_])?"
_HUB_ID = re.compile(rf"{_HUB_PART}(?:/{_HUB_PART})?")
_REVISION = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_./+-]{0,254}")
_CONTROL = re.compile(r"[\x00-\x1f\x7f\\:\ud800-\udfff]")


@dataclass(frozen=True)
class Location:
    """A place that may hold the files of a repository: `base` is a folder path (`on_disk`) or a URL ending in "/"."""

    base: str
    on_disk: bool = False
    remote: bool = True  # False: named as local by the caller or by `env.local_model_path`

    def file(self, filename: str) -> str:
        """Path or URL of a file whose name `check_path` has passed."""
        return os.path.join(self.base, *filename.split("/")) if self.on_disk else self.base + quote(filename)


def stays_inside(path: str) -> bool:
    """Whether `path` is a relative path of plain names with "/" between them."""
    return not _CONTROL.search(path) and not any(part in ("", ".", "..") for part in path.split("/"))


def check_path(path: str, what: str = "file name") -> str:
    """`path` itself if it stays inside the folder it is relative to; else `InputError`."""
    if not stays_inside(path):
        raise InputError(
            f"{what} {path!r} does not stay inside the repository.",
            hint="Expected a relative path of plain names.",
            path=path,
        )
    return path


def locate(name: str, revision: str, subfolder: str) -> list[Location]:
    """The places to look for the files of repository `name`, in order."""
    if subfolder:
        check_path(subfolder, "subfolder")
    tail = subfolder + "/" if subfolder else ""
    folder = _web_folder(name)
    if folder is not None:
        _refuse_revision(name, revision)
        return [Location(folder + quote(tail), remote="://" in name)]
    if not IN_BROWSER and env.allow_local_models:
        path = _disk_folder(name)
        if path is not None:
            _refuse_revision(name, revision)
            return [Location(os.path.join(path, *subfolder.split("/")), on_disk=True, remote=False)]
    if _is_path(name):
        reason = "there is no such folder" if env.allow_local_models else "env.allow_local_models is False"
        raise InputError(
            f"{name!r} cannot be read as a local folder: {reason}.",
            hint="Give a hub id (org/name), the path of a folder, or the http(s) URL of one.",
            name=name,
        )
    places = [Location(_hub_folder(name, revision) + quote(tail))]
    if IN_BROWSER and env.allow_local_models:
        local = urljoin(page_url(), env.local_model_path.rstrip("/") + "/")
        places.insert(0, Location(f"{local}{name}/{quote(tail)}", remote=False))
    return places


def hub_origin() -> tuple[str, str]:
    """Scheme and host of `env.remote_host`: the only place a token may go."""
    return origin(_remote_host())


def origin(url: str) -> tuple[str, str]:
    parts = urlsplit(url)
    return parts.scheme, parts.netloc.lower()


def page_url() -> str:
    """URL that relative URLs refer to: the worker's or the page's own."""
    import js  # pyright: ignore[reportMissingImports]

    location = js.location
    return location.href if location.href.startswith("http") else location.origin + "/"


def _remote_host() -> str:
    try:
        host = urljoin(page_url(), env.remote_host) if IN_BROWSER else env.remote_host
        scheme = urlsplit(host).scheme
    except ValueError:
        host = scheme = ""
    if scheme not in ("http", "https"):
        raise ConfigError(f"env.remote_host is {env.remote_host!r}; expected an http(s) URL.")
    return host.rstrip("/") + "/"


def _hub_folder(name: str, revision: str) -> str:
    if not _HUB_ID.fullmatch(name) or ".." in name or "--" in name or name.endswith((".git", ".ipynb")):
        raise InputError(f"{name!r} is not the id of a model.", hint="Expected org/name.", name=name)
    if not _REVISION.fullmatch(revision) or ".." in revision or "//" in revision:
        raise InputError(f"{revision!r} is not a branch, tag or commit.", revision=revision)
    path = env.remote_path_template.replace("{model}", name).replace("{revision}", quote(revision, safe=""))
    if "{" in path or "}" in path or path.startswith("/"):
        raise ConfigError(
            f"env.remote_path_template is {env.remote_path_template!r}.",
            hint="Expected a relative path; its placeholders are {model} and {revision}.",
        )
    return _remote_host() + path.rstrip("/") + "/"


def _web_folder(name: str) -> str | None:
    """URL of the folder if `name` is one: absolute, or in a browser relative to the page."""
    if "://" not in name:
        return urljoin(page_url(), name.rstrip("/") + "/") if IN_BROWSER and _is_path(name) else None
    try:
        parts = urlsplit(name)
    except ValueError as error:
        raise InputError(f"{name!r} is no URL: {error}.", name=name) from error
    segments = parts.path.split("/")
    if parts.scheme not in ("http", "https") or not parts.hostname or parts.username is not None or ".." in segments:
        raise InputError(f"{name!r} is not the http(s) URL of a folder.", name=name)
    if parts.query or parts.fragment:
        raise InputError(f"{name!r} has a query or fragment; a folder's URL has neither.", name=name)
    return name.rstrip("/") + "/"


def _is_path(name: str) -> bool:
    return name.startswith(("/", "./", "../", "~", ".\\", "..\\")) or name in (".", "..") or os.path.isabs(name)


def _disk_folder(name: str) -> str | None:
    """The folder on disk that `name` means, if there is one."""
    if _is_path(name):
        candidates = [name if IN_PYODIDE else os.path.expanduser(name)]
    elif stays_inside(name):
        candidates = [env.local_model_path.rstrip("/") + "/" + name, name]
    else:
        candidates = []
    for candidate in candidates:
        path = host_folder(candidate) if IN_NODE else candidate
        if path is not None and os.path.isdir(path):
            return path
    return None


def _refuse_revision(name: str, revision: str) -> None:
    if revision != "main":
        raise InputError(
            f"{name!r} is a plain folder, which has no revision {revision!r}.",
            hint="Revisions are for hub ids.",
            name=name,
        )
