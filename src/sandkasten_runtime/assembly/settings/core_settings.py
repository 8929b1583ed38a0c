"""Settings of the daemon itself: sessions, policy, images, packages and records."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sandkasten.lazy_dataclass import dataclass
from sandkasten.model.images.pull_rules import PULL_MODES
from sandkasten.model.sandbox.gpus import ALL
from sandkasten.model.sandbox.isolation_levels import ISOLATIONS, MINIMA
from sandkasten.model.sandbox.policy import DEFAULT_BLOCKED_PATHS
from sandkasten.settings.setting_fields import setting
from sandkasten.settings.setting_parsers import (
    boolean,
    choice,
    image,
    path,
    seconds,
    show_pairs,
    string_list,
)
from sandkasten_runtime.assembly.settings.backend_names import backend_name, backend_or_labels
from sandkasten_runtime.assembly.settings.backend_rule_settings import (
    backend_rules,
    show_backend_rules,
)
from sandkasten_runtime.assembly.settings.core_parsers import (
    alias_map,
    gpu_count,
    image_list,
    mount_list,
    sandbox_paths,
)
from sandkasten_runtime.assembly.settings.network_settings import network_rules
from sandkasten_runtime.assembly.settings.registry_settings import parse_registries, show_registries
from sandkasten_runtime.assembly.settings.signature_settings import (
    parse_signatures,
    show_signatures,
)

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from sandkasten.model.backends.backend_rules import BackendRule
    from sandkasten.model.images.pull_rules import PullMode
    from sandkasten.model.images.trust_rules import TrustRule
    from sandkasten_runtime.images.registry.registry_credentials import Access


@dataclass(frozen=True, slots=True)
class GeneralSettings:
    data_dir: Path | None = setting(
        "data_dir",
        path,
        None,
        "Where sandboxes, images, workspaces and the daemon's own records are stored.",
        aliases=("STATION_SANDBOX_DIR",),
    )
    backend: str = setting(
        "backend",
        backend_name,
        "local",
        "The backend of a request that names none, such as local; sandkasten doctor --all lists "
        "all.",
    )
    default_image: str | None = setting(
        "default_image",
        image,
        None,
        "The image of a request that names none; default: the alias of what it runs, such as "
        "python or linux.",
    )
    allowed_images: tuple[str, ...] | None = setting(
        "allowed_images",
        image_list,
        None,
        "The only images that may be used; default: any.",
        aliases=("STATION_SANDBOX_ALLOWED_IMAGES",),
    )
    ttl_s: float = setting(
        "session_ttl_seconds",
        seconds,
        1800.0,
        "How long a session lives without activity unless its request says otherwise.",
    )
    idle_timeout_s: float = setting(
        "session_idle_timeout_seconds",
        seconds,
        1800.0,
        "Like session_ttl_seconds; the smaller of the two counts.",
        aliases=("SANDBOX_SESSION_IDLE_TIMEOUT",),
    )
    lifetime_s: float = setting(
        "session_max_lifetime_seconds",
        seconds,
        14_400.0,
        "When a session ends regardless of activity.",
        aliases=("SANDBOX_SESSION_MAX_LIFETIME",),
    )
    max_retain_s: float = setting(
        "session_max_retain_seconds",
        seconds,
        3600.0,
        "How long a session may be kept after the run of an agent or a workflow.",
    )
    socket_file: Path | None = setting(
        "socket", path, None, "The operator's Unix socket; default: daemon.sock in data_dir."
    )

    def socket(self, data_dir: Path) -> Path:
        """Return where a daemon of this data directory listens for its operator."""
        return self.socket_file or data_dir / "daemon.sock"


@dataclass(frozen=True, slots=True)
class PolicySettings:
    enabled: bool = setting(
        "policy.enabled",
        boolean,
        True,
        "Whether sandboxes may be created. Existing ones live on; sandkasten rm --all ends them.",
        aliases=("STATION_SANDBOX_ENABLED",),
    )
    code_mode: bool = setting(
        "policy.code_mode",
        boolean,
        True,
        "Whether agents and tools may have a sandbox with state (mode code).",
        aliases=("STATION_SANDBOX_CODE_MODE_ENABLED",),
    )
    blocked_paths: tuple[str, ...] = setting(
        "policy.blocked_paths",
        sandbox_paths,
        DEFAULT_BLOCKED_PATHS,
        "Paths that file tools neither read nor write.",
    )
    env_allow: tuple[str, ...] = setting(
        "policy.env_allow",
        string_list,
        (),
        "Environment variables of the daemon that every sandbox gets.",
    )
    mounts: tuple[str, ...] = setting(
        "policy.mounts",
        mount_list,
        (),
        "Directories of the host that requests may mount: read-only, or `mode: rw`.",
    )
    allow_network: bool = setting(
        "policy.allow_network",
        boolean,
        False,
        "Whether agent files of the operator's runs may ask for a network without policy.network.",
    )
    network: tuple[str, ...] | None = setting(
        "policy.network",
        network_rules,
        None,
        "What requests may reach: none, full or rules; default: full for the operator, else none.",
    )
    signatures: tuple[TrustRule, ...] = setting(
        "policy.images.signatures",
        parse_signatures,
        (),
        "Rules for signatures of images: a key, or the identity in a certificate; default: none.",
        show=show_signatures,
    )
    gpus: int = setting(
        "policy.gpus",
        gpu_count,
        0,
        "The most GPUs that a request may ask for: a number, or all.",
        show=lambda count: "all" if count == ALL else count,
    )
    isolation: str | None = setting(
        "policy.isolation",
        choice(*ISOLATIONS),
        None,
        "The isolation of a request that names none: standard, gvisor or strongest.",
    )
    isolation_minimum: str | None = setting(
        "policy.isolation_minimum",
        choice(*MINIMA),
        None,
        "The weakest isolation that a request may ask for.",
    )
    backends: tuple[BackendRule, ...] = setting(
        "policy.backends",
        backend_rules(backend_or_labels),
        (),
        "Rules that choose the backend of a request that names none; a list in use is a fallback.",
        show=show_backend_rules,
    )


@dataclass(frozen=True, slots=True)
class ImageSettings:
    reclaim_after_s: float | None = setting(
        "idle.reclaim_after_seconds",
        seconds,
        None,
        "When an idle sandbox gives its memory back; default: never.",
    )
    strict: bool = setting(
        "images.strict",
        boolean,
        False,
        "Whether an alias whose image is missing is an error instead of the host image.",
    )
    aliases: Mapping[str, str] = setting(
        "images.aliases",
        alias_map,
        {},
        "Names that stand for images, in addition to the built-in ones.",
        show=show_pairs,
    )
    pull: PullMode = setting(
        "images.pull",
        choice(*PULL_MODES),
        "named",
        "Which images requests pull: never, named (in full), missing (also aliases) or always.",
    )


@dataclass(frozen=True, slots=True)
class RegistrySettings:
    registries: Mapping[str, Access] = setting(
        "images.registries",
        parse_registries,
        {},
        "Registries and their credentials.",
        show=show_registries,
    )


@dataclass(frozen=True, slots=True)
class AuditSettings:
    enabled: bool = setting(
        "audit.enabled",
        boolean,
        True,
        "Whether changes, commands, file writes, network verdicts and refusals are recorded.",
    )
