"""What local isolation is made of: cgroups, id ranges, quota images, seccomp. No policy."""
