#!/bin/bash
# Sign one Windows program in place: sign.sh FILE
#
#   SIGNING_CERTIFICATE      certificate and key as a PKCS#12 file
#   SIGNING_PASSWORD_FILE    a file that holds its password
#   SIGNING_TIME_SERVER      a time-stamp server, so that the signature outlives the certificate
#
# makensis calls it for the installer and the uninstaller, the workflow for the programs.
set -euo pipefail
file=$1
stamp=()
if [ -n "${SIGNING_TIME_SERVER:-}" ]; then stamp=(-ts "$SIGNING_TIME_SERVER"); fi
osslsigncode sign -pkcs12 "$SIGNING_CERTIFICATE" -readpass "$SIGNING_PASSWORD_FILE" -h sha256 \
    -n code-memory "${stamp[@]}" -in "$file" -out "$file.signed"
mv "$file.signed" "$file"
