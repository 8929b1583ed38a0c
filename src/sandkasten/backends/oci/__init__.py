"""Isolation by an OCI runtime: runc or crun, or gVisor's runsc. Other packages use only
`OciBackend`.
"""

from __future__ import annotations

from sandkasten.backends.oci.backend import OciBackend
from sandkasten.backends.oci.cell import OciCell

__all__ = ["OciBackend", "OciCell"]
