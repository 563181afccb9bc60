#!/bin/sh
# Creates TEMPORAL_NAMESPACE with TEMPORAL_RETENTION where it does not exist; an existing one is left as it is.
set -eu

attempts=60
until temporal operator cluster health; do
    attempts=$((attempts - 1))
    [ "$attempts" -gt 0 ] || exit 1
    sleep 2
done

if ! temporal operator namespace describe --namespace "$TEMPORAL_NAMESPACE" > /dev/null; then
    temporal operator namespace create --namespace "$TEMPORAL_NAMESPACE" --retention "$TEMPORAL_RETENTION"
fi

# A new namespace is known everywhere some seconds later.
attempts=60
until temporal workflow count --namespace "$TEMPORAL_NAMESPACE" > /dev/null; do
    attempts=$((attempts - 1))
    [ "$attempts" -gt 0 ] || exit 1
    sleep 1
done
