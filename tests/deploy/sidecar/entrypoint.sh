# What docker:dind promises: certificates below DOCKER_TLS_CERTDIR, the client's readable by all, an
# engine on its socket and, with mutual TLS, on port 2376. The name in the certificate is ours.
set -eu
at=$DOCKER_TLS_CERTDIR
mkdir -p "$at/ca" "$at/server" "$at/client"
new="-newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 2"
openssl req -x509 $new -subj /CN=ca -keyout "$at/ca/key.pem" -out "$at/ca/cert.pem" 2>/dev/null
for who in server client; do
    openssl req $new -subj "/CN=$who" -keyout "$at/$who/key.pem" -out "$at/$who/csr.pem" 2>/dev/null
    printf 'extendedKeyUsage=%sAuth\nsubjectAltName=DNS:%s,DNS:localhost\n' "$who" "$(hostname)" \
        >"$at/$who/extensions"
    openssl x509 -req -days 2 -in "$at/$who/csr.pem" -CA "$at/ca/cert.pem" -CAkey "$at/ca/key.pem" \
        -CAcreateserial -extfile "$at/$who/extensions" -out "$at/$who/cert.pem" 2>/dev/null
    cp "$at/ca/cert.pem" "$at/$who/ca.pem"
done
chmod 0644 "$at/client/key.pem"
# A privileged container has these writable by itself.
for place in /proc/sys /sys/fs/cgroup /sys/fs/cgroup/*; do
    mount -o remount,rw,bind "$place" 2>/dev/null || true
done
rm -f /var/run/docker.pid
exec dockerd --host unix:///var/run/docker.sock --host tcp://0.0.0.0:2376 --tlsverify \
    --tlscacert "$at/server/ca.pem" --tlscert "$at/server/cert.pem" --tlskey "$at/server/key.pem"
