#!/bin/sh
# Unpacks a Python of Debian unstable with the libraries it needs, its C library too, into a directory of its own. Nothing is
# installed on the system. For Pythons that this machine has no package of; needs apt.
#
#   sh scripts/debian_python.sh 3.14          into build/python3.14, where scripts/matrix.py finds it
#
set -eu
version=$1
root=$(cd "$(dirname "$0")/.." && pwd)/build/python$version
rm -rf "$root"
mkdir -p "$root/apt/lists/partial" "$root/apt/cache/archives/partial"
cd "$root"
touch apt/status
# The archive that this machine takes its packages from has unstable too.
site=$(apt-get indextargets --format '$(SITE)' | grep '/debian/*$' | head -n 1)
echo "deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] $site sid main" > apt/sources.list
cat > apt/conf <<END
Dir::Etc::SourceList "$root/apt/sources.list";
Dir::Etc::SourceParts "/dev/null";
Dir::Etc::PreferencesParts "/dev/null";
Dir::State::Lists "$root/apt/lists";
Dir::State::Status "$root/apt/status";
Dir::Cache "$root/apt/cache";
Acquire::Languages "none";
END
export APT_CONFIG="$root/apt/conf"
apt-get update -qq
apt-get install -qq -y --no-install-recommends --download-only "python$version" "python$version-venv" libstdc++6 > /dev/null
for package in apt/cache/archives/*.deb; do dpkg-deb -x "$package" .; done
rm -r apt
# venv takes pip from here.
sed -i "s#'/usr/share/python-wheels/'#'$root/usr/share/python-wheels/'#" usr/lib/python"$version"/_sysconfigdata*.py
# The interpreter must find the C library it was built with: a program of that name starts both.
libraries=$root/usr/lib/$(uname -m)-linux-gnu
loader=$(echo "$libraries"/ld-linux*.so.*)
mv usr/bin/python"$version" usr/bin/python"$version".real
cat > usr/bin/python"$version" <<END
#!/bin/sh
exec $loader --library-path $libraries --argv0 "\$0" $root/usr/bin/python$version.real "\$@"
END
chmod +x usr/bin/python"$version"
"$root/usr/bin/python$version" --version
