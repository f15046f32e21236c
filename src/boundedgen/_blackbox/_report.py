"""The incidents of a black box for somebody on call: one as a page, or all of them, a line each."""

from __future__ import annotations

import json
import os
import pwd
import stat
from pathlib import Path

from boundedgen._blackbox._page import counts, page, text_of
from boundedgen._blackbox._scene import SCHEMA, Plain
from boundedgen._blackbox._witness import NAME

FILES = ("incident.json", "steps.jsonl", "inputs.jsonl", "output.txt", "stacks.txt", "threads.txt", "machine.txt")


class NoIncidentError(ValueError):
    """There is no incident there, or it cannot be read; the message says what is wrong."""


def newest(where: Path) -> Path:
    """`where` itself if it is an incident, else the newest one in it."""
    return found(where)[-1]


def found(where: Path) -> list[Path]:
    """`where` itself if it is an incident, else all those in it, the oldest first; one at least."""
    try:
        if not _is_folder(where):
            raise NoIncidentError(f"{where} is not a folder")
        if NAME.fullmatch(where.name) or (where / "incident.json").exists():
            return [where]
        inside = sorted(inner for inner in where.iterdir() if NAME.fullmatch(inner.name) and inner.is_dir())
    except PermissionError as error:
        raise NoIncidentError(_unreadable(where, error)) from error
    if not inside:
        raise NoIncidentError(f"{where} is no incident, and there is none in it")
    return inside


def _is_folder(where: Path) -> bool:
    try:
        return stat.S_ISDIR(where.stat().st_mode)
    except PermissionError:
        raise
    except OSError:
        return False


def _unreadable(where: Path, error: OSError) -> str:
    """An incident belongs to the user of the server."""
    try:
        owner = f"; it belongs to {_user(where.stat().st_uid)}"
    except OSError:
        owner = ", nor who it belongs to"
    return f"{where} cannot be read by {_user(os.geteuid())} ({error.strerror}){owner}"


def _user(number: int) -> str:
    try:
        return f"user {pwd.getpwuid(number).pw_name}"
    except KeyError:
        return f"user {number}"


def report(where: Path) -> tuple[str, list[str]]:
    """The page, and the files that are missing. Raises NoIncidentError."""
    folder = newest(where)
    told = _told(folder)
    missing = [name for name in FILES if not (folder / name).is_file()]
    try:
        lines = [*page(folder, told)]
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise NoIncidentError(f"{folder / 'incident.json'} is not what this version writes: {error!r}") from error
    if missing:
        lines += ["", f"missing: {', '.join(missing)}"]
    return _printable("\n".join(lines)) + "\n", missing


def listing(where: Path) -> tuple[str, list[str]]:
    """A line for each incident, the oldest first, and those that cannot be read. Raises NoIncidentError."""
    lines, unreadable = [], []
    for folder in found(where):
        try:
            lines.append(_line(folder))
        except NoIncidentError as error:
            lines.append(f"{folder.name}: {error}")
            unreadable.append(folder.name)
    return _printable("\n".join(lines)) + "\n", unreadable


def _line(folder: Path) -> str:
    told = _told(folder)
    try:
        step = "no step" if told["step_in_flight"] is None else f"step {told['step_in_flight']['step']}"
        row = f"failure {told['failures_in_a_row']} in a row"
        return f"{told['at'][:19]}Z  {told['cause']:<11}  {step:<9}  {counts(told)}; {row}  {folder.name}"
    except (KeyError, TypeError, ValueError) as error:
        raise NoIncidentError(f"incident.json is not what this version writes: {error!r}") from error


def _told(folder: Path) -> Plain:
    try:
        told = json.loads(text_of(folder / "incident.json"))
    except PermissionError as error:
        raise NoIncidentError(_unreadable(folder, error)) from error
    except OSError as error:
        raise NoIncidentError(f"{folder} is no whole incident: incident.json: {error.strerror}") from error
    except ValueError as error:
        raise NoIncidentError(f"{folder / 'incident.json'} cannot be read: {error}") from error
    if not isinstance(told, dict) or not isinstance(told.get("schema"), int):
        raise NoIncidentError(f"{folder / 'incident.json'} is not one of boundedgen's")
    if told["schema"] > SCHEMA:
        raise NoIncidentError(
            f"{folder} has schema {told['schema']}; this version knows up to {SCHEMA}: use a newer one"
        )
    return told


def _printable(text: str) -> str:
    """An engine's output must not move the reader's cursor."""
    return "".join(c if c == "\n" or c.isprintable() else "\ufffd" for c in text)
