"""`serve` and `init`: run a daemon, and write its settings."""

from __future__ import annotations

import os
import secrets
from typing import TYPE_CHECKING, Annotated, Final, cast

import typer

from sandkasten.errors import Conflict, FileTrouble

if TYPE_CHECKING:
    from sandkasten_server.cli.state import State

_CONFIG: Final = """\
# Settings of `sandkasten serve`. Every key and its default: sandkasten config show
listen: "{listen}"
data_dir: {data_dir}
api_key_file: {key_file}
{default_image}session_ttl_seconds: 30m
"""


# The first character keeps click from joining the lines.
_SERVE: Final = """\b
Examples:
  sandkasten serve                            loopback, ./sandkasten.yaml
  sandkasten serve --listen 0.0.0.0:8443 \\
    --tls-cert chain.pem --tls-key key.pem    for other machines; requires a key
  sandkasten --data-dir /srv/box serve --config /etc/box.yaml

It also listens on daemon.sock in the data directory: a client that can open that
file is the operator and needs no key. On loopback, requests need no key until the
first one exists (sandkasten key create); any other address requires a key.
SIGTERM lets responses finish (drain_seconds); a second one exits at once. One line
says that it is ready; then stderr has one JSON object per event.
Every setting: sandkasten config show --origin"""
_INIT: Final = """\b
Example:
  sandkasten init --config /etc/box.yaml --listen 0.0.0.0:8080"""


def add_to(app: typer.Typer) -> None:
    app.command("serve", epilog=_SERVE)(_serve)
    app.command("init", epilog=_INIT)(_init)


def _serve(
    context: typer.Context,
    listen: Annotated[
        str | None, typer.Option(metavar="HOST:PORT", help="Address to listen on (127.0.0.1:8080).")
    ] = None,
    config: Annotated[
        str | None, typer.Option(metavar="FILE", help="The settings file to read.")
    ] = None,
    api_key_file: Annotated[
        str | None, typer.Option(metavar="FILE", help="A file that holds the operator's key.")
    ] = None,
    tls_cert: Annotated[
        str | None, typer.Option(metavar="PEM", help="Certificate chain for HTTPS.")
    ] = None,
    tls_key: Annotated[
        str | None, typer.Option(metavar="PEM", help="Key of the certificate.")
    ] = None,
    log_level: Annotated[
        str | None, typer.Option(metavar="L", help="debug, info, warning or error.")
    ] = None,
) -> None:
    """Serve sandboxes over HTTP until SIGTERM or Ctrl-C. Sandboxes outlive the daemon."""
    from sandkasten_server.daemon.in_process import serve

    state = cast("State", context.obj)
    options = {
        "data_dir": state.data_dir,
        "backend": state.backend,
        "listen": listen,
        "config": config,
        "api_key_file": api_key_file,
        "tls.cert": tls_cert,
        "tls.key": tls_key,
        "telemetry.log_level": log_level,
    }
    flags = {name: value for name, value in options.items() if value is not None}
    serve(flags, lambda line: typer.echo(line, err=True))


def _init(
    context: typer.Context,
    config: Annotated[
        str, typer.Option(metavar="FILE", help="The settings file to write.")
    ] = "sandkasten.yaml",
    listen: Annotated[
        str, typer.Option(metavar="HOST:PORT", help="Address of the daemon.")
    ] = "127.0.0.1:8080",
    default_image: Annotated[
        str | None, typer.Option(metavar="I", help="Image of sandboxes that name none.")
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace existing files.")] = False,
) -> None:
    """Write a settings file and a key for a daemon."""
    from sandkasten.client.server.embedded import settings

    state = cast("State", context.obj)
    data_dir = os.path.abspath(state.data_dir or str(settings(state.here).data_dir))
    path = os.path.abspath(config)
    key_file = os.path.join(os.path.dirname(path), "sandkasten.key")
    filled = _CONFIG.format(
        listen=listen,
        data_dir=data_dir,
        key_file=key_file,
        default_image=f"default_image: {default_image}\n" if default_image else "",
    )
    _write_new(key_file, f"sk-{secrets.token_urlsafe(32)}\n", mode=0o600, replace=force)
    _write_new(path, filled, mode=0o644, replace=force)
    typer.echo(f"wrote {path} and {key_file}", err=True)
    typer.echo(f"start with: sandkasten serve --config {path}", err=True)


def _write_new(path: str, content: str, *, mode: int, replace: bool) -> None:
    flags = os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
    flags |= os.O_TRUNC if replace else os.O_EXCL
    try:
        fd = os.open(path, flags, mode)
    except FileExistsError as exc:
        raise Conflict(f"{path} already exists", hint="pass --force to replace it") from exc
    except OSError as exc:
        raise FileTrouble(f"cannot write {path}: {exc.strerror}", hint="check the path") from exc
    with os.fdopen(fd, "w", encoding="utf-8") as file:
        os.fchmod(file.fileno(), mode)
        file.write(content)
