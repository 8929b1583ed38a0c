"""A real Kubernetes of two nodes on this machine, which belongs to one test run.

`scripts/cluster_build.sh` builds its programs, `Cluster` starts them, and `python -m tests.cluster`
does so for a person.
"""

from __future__ import annotations
