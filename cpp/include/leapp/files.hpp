// Files that a bundle names: where they may be, and whether their bytes are the ones that were written.
//
// A file is opened once, checked to be a regular file, read, hashed, and only then handed on. A file whose sha256 is known may
// lie anywhere, as links of caches and models that stay where they are do; any other file lies inside the bundle. Nothing here
// interprets a model. The rules and words are those of src/leapp/bundle/files.py.
#pragma once

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "errors.hpp"
#include "fold.hpp"
#include "sha256.hpp"
#include "value.hpp"

namespace leapp {

using Bytes = std::vector<unsigned char>;

namespace detail {

namespace fs = std::filesystem;

/// A path as it is written on a command line: quoted, and never taken for an option.
inline std::string as_argument(std::string text) {
  if (!text.empty() && text[0] == '-') text = "./" + text;
  const auto plain = [](char c) {
    const bool letter = (c | 32) >= 'a' && (c | 32) <= 'z', digit = c >= '0' && c <= '9';
    return letter || digit || std::string_view("@%+=:,./-_").find(c) != std::string_view::npos;
  };
  if (!text.empty() && std::all_of(text.begin(), text.end(), plain)) return text;
  std::string quoted = "'";
  for (const char c : text) quoted += c == '\'' ? "'\"'\"'" : std::string(1, c);
  return quoted + "'";
}

/// Whether a path could mean another file on another system.
inline bool unportable(std::string_view name) {
  for (const char c : name) {
    const auto byte = static_cast<unsigned char>(c);
    if (byte < 0x20 || byte == 0x7f || byte == '\\') return true;
  }
  const bool letter = !name.empty() && ((name[0] | 32) >= 'a' && (name[0] | 32) <= 'z');
  return letter && name.size() > 1 && name[1] == ':';
}

inline bool has_parent_step(const std::string& name) {
  for (std::size_t at = 0; at <= name.size();) {
    const std::size_t end = std::min(name.find('/', at), name.size());
    if (name.compare(at, end - at, "..") == 0 && end - at == 2) return true;
    at = end + 1;
  }
  return false;
}

/// Whether `path` lies in the directory `root` or below; both without links.
inline bool lies_inside(const fs::path& path, const fs::path& root) {
  const std::string inner = path.native(), outer = root.native();
  const std::string prefix = outer == "/" ? outer : outer + "/";
  return inner.size() > prefix.size() && inner.compare(0, prefix.size(), prefix) == 0;
}

inline fs::path real_path(const fs::path& path) {
  std::error_code error;
  const fs::path absolute = fs::absolute(path, error);
  const fs::path found = fs::weakly_canonical(absolute, error);
  return error ? absolute.lexically_normal() : found;
}

/// Python's os.path.normpath.
inline std::string normal_path(const std::string& name) {
  std::string text = fs::path(name).lexically_normal().native();
  while (text.size() > 1 && text.back() == '/') text.pop_back();
  return text.empty() ? "." : text;
}

/// Whether a path is, or leads through, what the system makes up when it is read. Shared memory holds ordinary files.
inline bool made_up(const fs::path& path) {
  const auto starts = [](const std::string& text, const char* with) { return text.rfind(with, 0) == 0; };
  const auto strange = [&](const std::string& text) {
    const bool system = starts(text, "/proc/") || starts(text, "/sys/") || starts(text, "/dev/");
    return system && !starts(text, "/dev/shm/");
  };
  std::error_code error;
  fs::path spelled = normal_path(fs::absolute(path, error).native());
  if (strange(spelled.native()) || strange(real_path(path).native())) return true;
  for (int links = 0; links < 40 && fs::is_symlink(spelled, error); ++links) {
    const fs::path target = fs::read_symlink(spelled, error);
    if (error) return false;
    spelled = normal_path((spelled.parent_path() / target).native());
    if (strange(spelled.native())) return true;
  }
  return false;
}

/// Whether an opened file belongs to a file system that the kernel makes up.
inline bool made_up_device(::dev_t device) {
  static const std::vector<::dev_t> known = [] {
    std::vector<::dev_t> found;
    struct stat root {
    }, folder{};
    ::stat("/", &root);
    for (const char* name : {"/proc", "/sys"}) {
      if (::stat(name, &folder) == 0 && folder.st_dev != root.st_dev) found.push_back(folder.st_dev);
    }
    return found;
  }();
  return std::find(known.begin(), known.end(), device) != known.end();
}

/// The file that `name` means, seen from the bundle's directory. `what` says what the file is, for messages; `anywhere`
/// whether it may lie outside the directory.
inline fs::path locate(const fs::path& directory, const std::string& name, const std::string& what, bool anywhere = false) {
  if (name.empty() || unportable(name)) throw BundleError(what + ": " + repr_text(name) + " is not a usable path.");
  const std::string cure = "Copy the file into the bundle, or pass allow_outside=True if you trust this bundle.";
  if (!anywhere && (name[0] == '/' || has_parent_step(name))) {
    throw BundleError(what + ": the path '" + name + "' leads out of the bundle directory. " + cure);
  }
  const fs::path root = real_path(directory);
  const fs::path path = real_path(root / name);
  if (!anywhere && !lies_inside(path, root)) {
    throw BundleError(what + ": '" + name + "' is a link to a place outside the bundle directory. " + cure);
  }
  if (made_up(root / name)) throw BundleError(what + ": '" + name + "' is not a regular file.");
  std::error_code error;
  if (!fs::exists(path, error) || error) {
    throw BundleFileError(what + ": the file '" + name.substr(0, 200) + "' is missing in " + directory.native() +
                          ". Copy the whole bundle directory.");
  }
  return path;
}

/// The bytes of a regular file. Pipes, devices, directories and what the system makes up (`/proc`) are refused.
inline Bytes read_regular(const fs::path& path, const std::string& what, std::uint64_t limit = UINT64_MAX) {
  struct Descriptor {
    int get;
    ~Descriptor() {
      if (get >= 0) ::close(get);
    }
  };
  const auto unreadable = [&](int code) {
    return BundleError(what + ": " + path.native() + " cannot be read: [Errno " + std::to_string(code) + "] " +
                       std::strerror(code) + ": " + repr_text(path.native()) + ".");
  };
  if (made_up(path)) throw BundleError(what + ": " + path.native() + " is not a regular file.");
  // Without O_NONBLOCK, opening a pipe that nobody writes to would wait for ever.
  const Descriptor file{::open(path.c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC)};
  if (file.get < 0) {
    if (errno == ENOENT) throw BundleFileError(what + ": there is no file " + path.native() + ".");
    throw unreadable(errno);
  }
  struct stat status {};
  if (::fstat(file.get, &status) != 0) throw unreadable(errno);
  // Asked again of what was opened: the path may have been exchanged meanwhile.
  if (!S_ISREG(status.st_mode) || made_up_device(status.st_dev)) {
    throw BundleError(what + ": " + path.native() + " is not a regular file.");
  }
  // Nothing is as quickly made as a long file of holes.
  const auto size = static_cast<std::uint64_t>(status.st_size);
  if (size > std::uint64_t{1} << 30 && static_cast<std::uint64_t>(status.st_blocks) * 512 < size / 8) {
    throw BundleError(what + ": " + path.native() + " says that it has " + std::to_string(size) +
                      " bytes, most of which were never written.");
  }
  // What does not fit into the memory of this machine is refused before it is read.
  if (limit == UINT64_MAX) {
    const long page = ::sysconf(_SC_PAGE_SIZE), pages = ::sysconf(_SC_PHYS_PAGES);
    if (page > 0 && pages > 0) limit = static_cast<std::uint64_t>(page) * static_cast<std::uint64_t>(pages);
  }
  if (size > limit) {
    throw BundleError(what + ": " + path.native() + " is larger than " + std::to_string(limit) + " bytes.");
  }
  Bytes data(static_cast<std::size_t>(status.st_size) + 1);  // one more, to see the end without growing
  for (std::size_t filled = 0;;) {
    const ::ssize_t got = ::read(file.get, data.data() + filled, data.size() - filled);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) throw unreadable(errno);
    filled += static_cast<std::size_t>(got);
    if (got == 0) {
      data.resize(filled);
      return data;
    }
    if (filled > limit) throw BundleError(what + ": " + path.native() + " is larger than " + std::to_string(limit) + " bytes.");
    if (filled == data.size()) data.resize(2 * filled);
  }
}

/// The bytes of a file, after they were found to have the given sha256.
inline Bytes read_verified(const fs::path& path, const std::string& expected, const std::string& what) {
  Bytes data = read_regular(path, what);
  const std::string found = sha256(data.data(), data.size());
  if (found != expected) {
    throw BundleError(what + ": checksum mismatch, the file " + path.filename().native() +
                      " was changed or damaged after the export (expected sha256 " + expected + ", got " + found +
                      "). Export again or restore the file.");
  }
  return data;
}

/// Refuse two different paths that are one file where upper and lower case, or accents, are not told apart.
inline void check_collisions(const std::vector<std::string>& names) {
  std::map<std::string, std::string> seen;
  for (const std::string& name : names) {
    const std::string& other = seen.emplace(folded(normal_path(name)), name).first->second;
    if (normal_path(other) != normal_path(name)) {
      throw BundleError("The paths '" + other + "' and '" + name +
                        "' are the same file on systems that ignore case. Rename one node.");
    }
  }
}

}  // namespace detail

}  // namespace leapp
