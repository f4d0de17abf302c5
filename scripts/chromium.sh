#!/bin/sh
# The tests of the page drive Debian's Chromium. Installs it where that is possible and says so where it is not.
set -eu
if command -v chromium >/dev/null && command -v chromedriver >/dev/null; then
    exit 0
fi
if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
    export DEBIAN_FRONTEND=noninteractive
    apt-get -qq update >/dev/null
    apt-get -qq install -y --no-install-recommends chromium chromium-driver fonts-dejavu-core >/dev/null
else
    echo "The tests of the page need chromium and chromedriver: apt-get install chromium chromium-driver" >&2
fi
