"""Building blocks of local isolation: cgroups, id ranges, quota images, seccomp. No policy."""
