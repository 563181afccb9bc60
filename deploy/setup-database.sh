#!/bin/sh
# Creates Temporal's two databases and brings their schema up to this image's. Safe to repeat. The connection is in SQL_*.
set -eu

for database in temporal visibility; do
    name=temporal
    [ "$database" = visibility ] && name=temporal_visibility
    temporal-sql-tool --db "$name" create-database
    temporal-sql-tool --db "$name" setup-schema -v 0.0
    temporal-sql-tool --db "$name" update-schema -d "/etc/temporal/schema/postgresql/v12/$database/versioned"
done
