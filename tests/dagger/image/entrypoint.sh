# A privileged container has these writable by itself; one with a list of capabilities has not.
for place in /proc/sys /sys/fs/cgroup /sys/fs/cgroup/*; do
    mount -o remount,rw,bind "$place" 2>/dev/null || true
done
exec /usr/local/bin/dagger-engine --config /etc/dagger/engine.toml "$@"
