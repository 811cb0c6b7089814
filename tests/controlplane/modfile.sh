#!/bin/sh
# Writes go.mod and go.sum for the versions below. Run it by hand to move to
# another Kubernetes release; a build only reads what it wrote.
#
# k8s.io/kubernetes points every library it publishes at its own ./staging
# folder, which a module that depends on it cannot see. Each library is published
# under the matching v0 version, so each `=> ./staging/…` becomes `=> v0.X.Y`.
set -eu
cd "$(dirname "$0")"

KUBERNETES=${KUBERNETES:-v1.37.2}
ETCD=${ETCD:-v3.7.3}
LIBRARIES=v0${KUBERNETES#v1}

upstream=$(GOFLAGS=-mod=mod go mod download -json "k8s.io/kubernetes@$KUBERNETES" |
	sed -n 's/^.*"GoMod": "\(.*\)",$/\1/p')

{
	echo "// Written by modfile.sh; the direct requirements and the replacements are its."
	echo "module reeve.dev/controlplane"
	echo
	sed -n -e '/^go /p' -e '/^godebug /p' "$upstream"
	echo
	echo "require ("
	echo "	go.etcd.io/etcd/server/v3 $ETCD"
	echo "	k8s.io/kubernetes $KUBERNETES"
	echo ")"
	echo
	echo "replace ("
	sed -n 's|^\t*\(k8s.io/[a-z0-9-]*\) => ./staging/.*|	\1 => \1 '"$LIBRARIES"'|p' "$upstream"
	echo ")"
} >go.mod
rm -f go.sum
go mod tidy
