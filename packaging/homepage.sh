#!/bin/sh
# Prints the address of the page of whoever publishes the packages: NARTHEX_HOMEPAGE, or the page of the repository from
# which the working folder was cloned. Prints nothing if neither is known.
set -eu

if [ -n "${NARTHEX_HOMEPAGE:-}" ]; then
  echo "$NARTHEX_HOMEPAGE"
  exit
fi
# An address may have a user, a token or the port of SSH, which are not part of the page's address.
git config --get remote.origin.url 2>/dev/null | sed -nE \
  -e 's#/+$##' -e 's#\.git$##' \
  -e 's#^https://([^/@]*@)?([^/@]+/.+)$#https://\2#p' \
  -e 's#^ssh://([^/@]*@)?([^/@:]+)(:[0-9]+)?/(.+)$#https://\2/\4#p' \
  -e 's#^[^/@:]+@([^/@:]+):/?(.+)$#https://\1/\2#p' || true
