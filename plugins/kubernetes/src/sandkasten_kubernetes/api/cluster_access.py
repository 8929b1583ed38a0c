"""Address and credentials of a cluster: of this Pod's service account, or of a kubeconfig.

Files are read when a session is opened, and a token that a file holds again before it expires: the
kubelet replaces it. Raises InvalidConfiguration and BackendUnavailable.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import datetime
import json
import os
import ssl
import time
from dataclasses import field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from sandkasten.disk.child_process import start_child
from sandkasten.errors import BackendUnavailable, InvalidConfiguration
from sandkasten.lazy_dataclass import dataclass

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

SERVICE_ACCOUNT: Final = Path("/var/run/secrets/kubernetes.io/serviceaccount")
_DEFAULT: Final = "default"
_TOKEN_BYTES: Final = 64 * 1024
# The kubelet replaces a token when a fifth of its life is left.
_REREAD_S: Final = 60.0
_PLUGIN_S: Final = 30.0
_PLUGIN_BYTES: Final = 256 * 1024
_EARLY_S: Final = 60.0


@dataclass(slots=True)
class ClusterAccess:
    server: str
    namespace: str
    ca: bytes = field(default=b"", repr=False)
    """PEM; empty: the authorities of this machine."""
    insecure: bool = False
    server_name: str = ""
    certificate: bytes = field(default=b"", repr=False)
    key: bytes = field(default=b"", repr=False)
    token: str = field(default="", repr=False)
    token_file: str = ""
    plugin: Mapping[str, Any] | None = field(default=None, repr=False)
    """A program that prints a token, as clusters of cloud providers have it."""
    _until: float = 0.0

    def context(self) -> ssl.SSLContext | None:
        """Return how TLS is checked; None for plain HTTP. Blocks for a moment."""
        if not self.server.startswith("https:"):
            return None
        try:
            context = ssl.create_default_context(cadata=self.ca.decode() or None)
            # Authorities of clusters are often made without the key identifiers of RFC 5280.
            context.verify_flags &= ~ssl.VERIFY_X509_STRICT
            if self.insecure:
                context.check_hostname = False
                context.verify_mode = ssl.CERT_NONE
            if self.certificate:
                _load(context, self.certificate, self.key)
        except (ssl.SSLError, ValueError, OSError) as exc:
            raise BackendUnavailable(
                f"the credentials of the cluster cannot be used: {exc}",
                hint="check the certificates in the kubeconfig",
                backend="kubernetes",
            ) from exc
        return context

    async def headers(self) -> dict[str, str]:
        """Return the headers that prove who we are."""
        now = time.monotonic()
        if now >= self._until and self.token_file:
            self.token = await asyncio.to_thread(_token_in, self.token_file)
            self._until = now + _REREAD_S
        elif now >= self._until and self.plugin is not None:
            self.token, lives_s = await _asked(self.plugin)
            self._until = now + lives_s
        return {"Authorization": f"Bearer {self.token}"} if self.token else {}


def in_cluster(environ: Mapping[str, str], directory: Path = SERVICE_ACCOUNT) -> ClusterAccess:
    """Return the access that this Pod's service account has."""
    host = environ.get("KUBERNETES_SERVICE_HOST", "")
    port = environ.get("KUBERNETES_SERVICE_PORT", "443")
    token = directory / "token"
    if not host or not token.exists():
        raise BackendUnavailable(
            "this process is not in a Pod with a service account, and no kubeconfig is set",
            hint="set backends.kubernetes.kubeconfig to a kubeconfig file",
            backend="kubernetes",
        )
    try:
        namespace = (directory / "namespace").read_text().strip()
        authority = (directory / "ca.crt").read_bytes()
    except OSError as exc:
        raise BackendUnavailable(
            f"the service account of this Pod cannot be read: {exc}",
            hint="check automountServiceAccountToken of the daemon's Pod",
            backend="kubernetes",
        ) from exc
    shown = f"[{host}]" if ":" in host else host
    return ClusterAccess(
        f"https://{shown}:{port}", namespace or _DEFAULT, ca=authority, token_file=str(token)
    )


def from_kubeconfig(
    path: Path, context: str, read: Callable[[Path], object], environ: Mapping[str, str]
) -> ClusterAccess:
    """Return the access of a context; an empty name means the current one."""
    tree = read(path)
    if not isinstance(tree, dict):
        raise _invalid(path, "is not a mapping")
    chosen = context or str(tree.get("current-context") or "")
    selected = _named(path, tree, "contexts", "context", chosen)
    cluster = _named(path, tree, "clusters", "cluster", str(selected.get("cluster") or ""))
    user = _named(path, tree, "users", "user", str(selected.get("user") or ""))
    server = str(cluster.get("server") or "").rstrip("/")
    if not server.startswith(("https://", "http://")):
        raise _invalid(path, "names no server")
    if user.get("auth-provider") is not None:
        raise _invalid(path, "uses auth-provider, which Kubernetes has removed; use exec")
    plugin = user.get("exec")
    return ClusterAccess(
        server,
        str(selected.get("namespace") or _DEFAULT),
        ca=_content(path, cluster, "certificate-authority"),
        insecure=cluster.get("insecure-skip-tls-verify") is True,
        server_name=str(cluster.get("tls-server-name") or ""),
        certificate=_content(path, user, "client-certificate"),
        key=_content(path, user, "client-key"),
        token=str(user.get("token") or ""),
        token_file=_relative(path, str(user.get("tokenFile") or "")),
        plugin=_plugin(path, plugin, environ) if isinstance(plugin, dict) else None,
    )


def _named(path: Path, tree: Mapping[str, Any], kind: str, key: str, name: str) -> dict[str, Any]:
    for entry in tree.get(kind) or ():
        if isinstance(entry, dict) and entry.get("name") == name:
            values = entry.get(key)
            if isinstance(values, dict):
                return values
    raise _invalid(path, f"has no {key} named {name!r}")


def _content(path: Path, entry: Mapping[str, Any], key: str) -> bytes:
    """Return the content of `key-data`, or of the file that `key` names."""
    data = entry.get(f"{key}-data")
    try:
        if data:
            return base64.b64decode(str(data), validate=True)
        named = str(entry.get(key) or "")
        return Path(_relative(path, named)).read_bytes() if named else b""
    except (binascii.Error, ValueError) as exc:
        raise _invalid(path, f"has an invalid {key}-data") from exc
    except OSError as exc:
        raise _invalid(path, f"names {key}, which cannot be read: {exc.strerror}") from exc


def _relative(path: Path, name: str) -> str:
    return os.path.join(path.parent, name) if name else ""


def _plugin(path: Path, plugin: Mapping[str, Any], environ: Mapping[str, str]) -> Mapping[str, Any]:
    command = str(plugin.get("command") or "")
    if not command:
        raise _invalid(path, "has an exec without a command")
    # A name without a slash is looked up in PATH, any other one is relative to the file.
    if "/" in command:
        command = _relative(path, command)
    extra = {
        str(variable.get("name")): str(variable.get("value"))
        for variable in plugin.get("env") or ()
        if isinstance(variable, dict)
    }
    version = str(plugin.get("apiVersion") or "client.authentication.k8s.io/v1")
    exec_info = {"apiVersion": version, "kind": "ExecCredential", "spec": {"interactive": False}}
    return {
        "argv": [command, *(str(arg) for arg in plugin.get("args") or ())],
        "env": {**environ, **extra, "KUBERNETES_EXEC_INFO": json.dumps(exec_info)},
    }


async def _asked(plugin: Mapping[str, Any]) -> tuple[str, float]:
    """Return the token that a program prints, and how many seconds to use it."""
    argv = plugin["argv"]
    try:
        child = await start_child(argv, streams=["stdout"], env=plugin["env"])
    except OSError as exc:
        raise _no_token(argv[0], str(exc.strerror)) from exc
    try:
        async with asyncio.timeout(_PLUGIN_S):
            text = b""
            while (part := await child.reader.read(_PLUGIN_BYTES)) and len(text) < _PLUGIN_BYTES:
                text += part
            code = await child.wait()
    except TimeoutError as exc:
        raise _no_token(argv[0], f"it did not answer within {_PLUGIN_S:g} s") from exc
    finally:
        await child.aclose()
    try:
        status = json.loads(text)["status"]
        token = str(status["token"])
        lives_s = _left(str(status.get("expirationTimestamp") or ""))
    except (ValueError, KeyError, TypeError) as exc:
        raise _no_token(argv[0], f"it printed no token, status {code}") from exc
    return token, lives_s


def _left(expires: str) -> float:
    if not expires:
        return 600.0
    when = datetime.datetime.fromisoformat(expires.replace("Z", "+00:00"))
    remaining_s = (when - datetime.datetime.now(datetime.UTC)).total_seconds()
    return max(1.0, remaining_s - _EARLY_S)


def _token_in(path: str) -> str:
    try:
        with open(path, encoding="ascii") as file:
            return file.read(_TOKEN_BYTES).strip()
    except (OSError, ValueError) as exc:
        raise BackendUnavailable(
            f"the token of the cluster cannot be read: {exc}",
            hint=f"check {path}",
            backend="kubernetes",
        ) from exc


def _load(context: ssl.SSLContext, certificate: bytes, key: bytes) -> None:
    """Load a key that is not in a file: the library reads files only."""
    descriptor = os.memfd_create("key", os.MFD_CLOEXEC)
    try:
        os.write(descriptor, certificate + b"\n" + key)
        context.load_cert_chain(f"/proc/self/fd/{descriptor}")
    finally:
        os.close(descriptor)


def _no_token(program: str, why: str) -> BackendUnavailable:
    return BackendUnavailable(
        f"{program} gave no token for the cluster: {why}",
        hint="run it yourself; the kubeconfig names it under exec",
        backend="kubernetes",
    )


def _invalid(path: Path, what: str) -> InvalidConfiguration:
    return InvalidConfiguration(
        f"kubeconfig {path} {what}",
        hint="kubectl config view shows it",
        setting="backends.kubernetes.kubeconfig",
    )
