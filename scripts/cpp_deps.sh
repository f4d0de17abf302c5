#!/bin/sh
# Brings what the C++ tests stand on into a directory: headers and libraries of ONNX Runtime, OpenVINO,
# libyaml and OpenSSL.
#
#   sh scripts/cpp_deps.sh DIRECTORY PYTHON
#
# The library of ONNX Runtime is the one of PYTHON's own onnxruntime package, so that both runtimes run the same code. Its headers
# come from npm's @qvac/onnx (Apache-2.0), OpenVINO from PyPI, libyaml and OpenSSL from Debian where the machine has no
# libyaml-dev or libssl-dev.
set -eu
target=$1
python=$(cd "$(dirname "$2")" && pwd)/$(basename "$2")
headers=@qvac/onnx@0.15.1
openvino=openvino==2026.4.1
mkdir -p "$target"
cd "$target"

if ! test -f onnxruntime/include/onnxruntime_c_api.h; then
    archive=$(npm pack --silent "$headers")
    mkdir -p onnxruntime
    tar xzf "$archive" package/prebuilds/include/onnxruntime
    rm -rf onnxruntime/include "$archive"
    mv package/prebuilds/include/onnxruntime onnxruntime/include
    rm -r package
fi

library=$("$python" -c "import glob, onnxruntime, os
(found,) = glob.glob(os.path.dirname(onnxruntime.__file__) + '/capi/libonnxruntime.so.*')
print(found)")
mkdir -p onnxruntime/lib
ln -sfn "$library" onnxruntime/lib/libonnxruntime.so
ln -sfn "$library" onnxruntime/lib/libonnxruntime.so.1

if ! test -d openvino/cmake; then
    "$python" -m pip install --quiet --disable-pip-version-check --no-deps --target openvino-package "$openvino"
    mv openvino-package/openvino openvino
    rm -r openvino-package
fi

# The files of Debian packages, in a directory of that name.
unpack() {
    directory=$1
    shift
    apt-get download -qq "$@" || { apt-get update -qq; apt-get download -qq "$@"; }
    for package in *.deb; do dpkg -x "$package" "$directory"; done
    rm ./*.deb
}

if ! test -f /usr/include/yaml.h && ! test -f yaml/usr/include/yaml.h; then
    unpack yaml libyaml-dev libyaml-0-2
fi

if ! test -f /usr/include/openssl/evp.h && ! test -f openssl/include/openssl/evp.h; then
    rm -rf openssl openssl-packages
    apt-cache show libssl-dev > /dev/null 2>&1 || apt-get update -qq
    library=$(apt-cache depends libssl-dev | sed -n 's/.*Depends: \(libssl3[a-z0-9]*\)$/\1/p')
    unpack openssl-packages libssl-dev "$library"
    mkdir openssl
    mv openssl-packages/usr/include openssl/include
    cp openssl/include/*-linux-gnu/openssl/* openssl/include/openssl
    mv openssl-packages/usr/lib/*-linux-gnu openssl/lib
    rm -r openssl-packages
fi
