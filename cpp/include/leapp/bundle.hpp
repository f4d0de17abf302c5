// Open a bundle: the description checked, its seal, every file where it may be and unchanged, before any engine sees it.
//
// Loads no engine and runs nothing. The rules and words are those of src/leapp/bundle/reading.py and integrity.py.
#pragma once

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "description.hpp"
#include "files.hpp"
#include "onnx_files.hpp"
#include "safetensors.hpp"
#include "signing.hpp"
#include "yaml.hpp"

namespace leapp {

/// An opened bundle.
struct Bundle {
  std::filesystem::path path;  ///< The YAML file.
  Contract contract;
  std::optional<std::string> digest;         ///< Of the bundle as it is. Nothing if it carries no seal.
  std::map<std::string, std::string> files;  ///< The sha256 of every sealed or signed file, by name.
  bool annotated = false;                    ///< Whether annotations, which decide no behaviour, changed since it was sealed.
  bool allow_outside = false;                ///< Whether files may lie outside the directory though their sha256 is not known.
  std::optional<Signature> signature;        ///< Who signed the bundle, if a signature was asked for.

  /// Whether the sha256 of every file is known, from a seal or a signature.
  bool covered() const { return digest || signature; }
  std::filesystem::path directory() const { return path.has_parent_path() ? path.parent_path() : "."; }
  std::string graph() const { return path.stem().native(); }
};

namespace detail {

/// One spelling for every value of the same meaning: JSON with sorted keys.
inline std::string canonical(const Value& value) {
  std::string out;
  if (value.is(Value::Kind::list)) {
    for (const Value& item : value.items) out += (out.empty() ? "" : ",") + canonical(item);
    return "[" + out + "]";
  }
  if (!value.is(Value::Kind::mapping)) return json_scalar(value);
  std::vector<std::string> parts;
  for (const auto& [key, item] : value.entries) parts.push_back(canonical(key) + ":" + canonical(item));
  std::sort(parts.begin(), parts.end());
  for (const std::string& part : parts) out += (out.empty() ? "" : ",") + part;
  return "{" + out + "}";
}

template <class Unwanted>
void remove_keys(Value& mapping, Unwanted unwanted) {
  auto& entries = mapping.entries;
  entries.erase(std::remove_if(entries.begin(), entries.end(), [&](const auto& entry) { return unwanted(entry.first); }),
                entries.end());
}

/// The digest over everything the description says and the sha256 of every file.
inline std::string digest_of(Value document, const Value& files) {
  remove_keys(document, [](const Value& key) { return key.is_text("integrity"); });
  const std::string text = "[" + canonical(document) + "," + canonical(files) + "]";
  return sha256(text.data(), text.size());
}

/// The digest over what decides the values a bundle computes, and over its files. The rest is annotations.
inline std::string behaviour_of(const Value& document, const Value& files) {
  const auto annotation = [](const Value& key) {
    return !one_of(key.text, {"name", "dtype", "shape", "type", "kind", "element_names", "temporal_period_ms", "batch_axis"});
  };
  Value models = *document.find("models"), pipeline = *document.find("pipeline");
  for (auto& [name, node] : models.entries) {
    for (auto& [side, ports] : node.entries) {
      if (!one_of(side.text, {"inputs", "outputs"})) continue;
      for (Value& port : ports.items) remove_keys(port, annotation);
    }
  }
  remove_keys(pipeline, [](const Value& key) { return key.is_text("configs"); });
  const std::string text = "[" + canonical(models) + "," + canonical(pipeline) + "," + canonical(files) + "]";
  return sha256(text.data(), text.size());
}

/// Check the seal of a document that describes a bundle, and put its digest and files into the bundle.
inline void check_seal(const Value& document, const std::string& name, Bundle& bundle) {
  constexpr std::int64_t newest = 2;  // seals without a version are older: their digest covers everything and must fit
  const Value* entry = document.find("integrity");
  if (entry == nullptr) {
    const Value* version = document.find("system information")->find("leapp version");
    const bool earlier = version != nullptr && version->is(Value::Kind::text) && version->text.size() > 2 &&
                         version->text.compare(0, 2, "0.") == 0 && version->text[2] >= '0' && version->text[2] <= '9';
    if (earlier) return;
    throw BundleError(name +
                      ": the mapping 'integrity' is missing, the end of the file seems to be lost. Restore the file, "
                      "export again, or run 'leapp seal " +
                      as_argument(name) + "' if you wrote it yourself.");
  }
  if (entry->is_text("unsealed")) return;
  const Value *digest = entry->find("digest"), *files = entry->find("files"), *behaviour = entry->find("behaviour");
  const Value* stated = entry->find("version");
  const bool numbered = stated == nullptr || stated->is(Value::Kind::integer);
  const std::int64_t version = stated == nullptr ? 1 : stated->text[0] == '-' ? -1 : stated->integer().value_or(INT64_MAX);
  if (stated != nullptr && numbered && version > newest) {
    throw BundleError(name + ": the seal has version " + stated->text + ", this leapp reads up to " + std::to_string(newest) +
                      ". Update leapp.");
  }
  const auto sha = [](const Value* value) {
    return value != nullptr && value->is(Value::Kind::text) && is_sha256(value->text);
  };
  const bool whole =
      sha(digest) && files != nullptr && files->is(Value::Kind::mapping) &&
      std::all_of(files->entries.begin(), files->entries.end(), [&](const auto& file) { return sha(&file.second); });
  if (!whole || !numbered || version < 1 || (version != 1 && !sha(behaviour))) {
    throw BundleError(name + ": 'integrity' is damaged. Restore the file or export again.");
  }
  for (const auto& [file, sum] : files->entries) {
    if (!file.is(Value::Kind::text)) {
      throw BundleError(name + ": 'integrity.files' names something that is not a file.");
    }
    bundle.files[file.text] = sum.text;
  }
  bundle.digest = digest_of(document, *files);
  bundle.annotated = *bundle.digest != digest->text;
  if (version == 1 ? bundle.annotated : behaviour_of(document, *files) != behaviour->text) {
    throw BundleError(name +
                      ": the description was changed after it was sealed: its nodes, ports, wiring or files do not fit "
                      "the seal. Restore the file or export again. If you edited it on purpose: leapp seal " +
                      as_argument(name) + ".");
  }
}

inline fs::path yaml_path(const fs::path& given) {
  const auto is_yaml = [](const fs::path& path) { return path.extension() == ".yaml" || path.extension() == ".yml"; };
  std::error_code error;
  if (fs::is_directory(given, error)) {
    std::vector<fs::path> candidates, same_name;
    for (const auto& entry : fs::directory_iterator(given, error)) {
      if (is_yaml(entry.path())) candidates.push_back(entry.path());
    }
    const std::string wanted = real_path(given).filename().native();
    for (const fs::path& path : candidates) {
      if (path.stem() == wanted) same_name.push_back(path);
    }
    const auto& chosen = same_name.size() == 1 ? same_name : candidates;
    if (chosen.size() != 1) {
      throw BundleFileError(given.native() + " holds " + std::to_string(candidates.size()) +
                            " YAML files. Name the one to open.");
    }
    return chosen[0];
  }
  if (given.extension().empty() && !fs::exists(given, error)) {
    throw BundleFileError(given.native() + " does not exist. Give the directory of a bundle or its .yaml file.");
  }
  if (!is_yaml(given)) {
    throw BundleError(given.native() + " is not a bundle description. Give the path of its .yaml file.");
  }
  return given;
}

/// Refuse a description that gives a file another sha256 than the signature does: only one of them can be meant.
inline void check_agreement(const Bundle& bundle) {
  const auto check = [&](const std::string& name, const std::string& sum) {
    const auto listed = bundle.signature->files.find(normal_path(name));
    if (listed == bundle.signature->files.end() || listed->second == sum) return;
    throw BundleError("file '" + name + "': " + bundle.path.filename().native() +
                      " and its signature list different sha256. Export again and sign the bundle again.");
  };
  for (const Node& node : bundle.contract.nodes) {
    if (node.model.path) check(*node.model.path, node.model.sha256);
  }
  for (const auto& [name, sum] : bundle.files) check(name, sum);
}

inline Bundle load(const fs::path& path, const std::optional<Keys>& trust = {}) {
  const std::string name = path.filename().native();
  Bundle bundle;
  bundle.path = path;
  if (trust) bundle.signature = verified_signature(path, *trust);
  const Bytes data = read_regular(path, "bundle description", max_description);
  if (bundle.signature) {
    const auto listed = bundle.signature->files.find(name);
    if (listed == bundle.signature->files.end() || listed->second != sha256(data.data(), data.size())) {
      throw BundleError(name + " is not the description that was signed. Restore the file or sign the bundle again.");
    }
  }
  std::string_view text(reinterpret_cast<const char*>(data.data()), data.size());
  if (text.substr(0, 3) == "\xef\xbb\xbf") text.remove_prefix(3);
  if (const std::size_t at = not_utf8(text); at != std::string_view::npos) {
    throw BundleError(name + ": not UTF-8 text (byte " + std::to_string(at) + ").");
  }
  const Value document = parse_yaml(text, name);
  bundle.contract = contract_of(document, name);
  check_seal(document, name, bundle);
  if (bundle.signature) {
    check_agreement(bundle);
    // A file that is not sealed is held to what was signed.
    for (const auto& [file, sum] : bundle.signature->files) {
      if (file != name) bundle.files.emplace(file, sum);
    }
  }
  return bundle;
}

inline fs::path locate_model(const Bundle& bundle, const Node& node) {
  if (!node.model.path) {
    throw BundleError("Node '" + node.name + "' has no model: it was exported without one (dry run or no backend).");
  }
  return locate(bundle.directory(), *node.model.path, "model of node '" + node.name + "'", true);
}

/// A file beside the YAML, verified if the bundle is sealed or signed. A seal that does not name the file refuses it.
inline Bytes read_sealed(const Bundle& bundle, const std::string& name) {
  const std::string what = "file '" + name + "'";
  const auto found = bundle.files.find(name);
  const bool known = bundle.covered() && found != bundle.files.end();
  const fs::path path = locate(bundle.directory(), name, what, known || bundle.allow_outside);
  if (!bundle.covered()) return read_regular(path, what);
  if (!known) {
    throw BundleError(what + ": the seal of " + bundle.path.filename().native() + " does not cover it. Export again.");
  }
  return read_verified(path, found->second, what);
}

/// The place of a model as the description spells it. If it is a link, engines look for external data beside the link.
inline fs::path spelled_path(const Bundle& bundle, const std::string& model) {
  return normal_path((real_path(bundle.directory()) / model).native());
}

/// The verified bytes of external data of a model.
inline Bytes read_external(const Bundle& bundle, const std::string& model, const std::string& what,
                           const std::string& location) {
  // ONNX Runtime takes an asterisk for an address in its own memory, whatever the directory holds.
  if (location.find('*') != std::string::npos || location[0] == '/' || has_parent_step(location)) {
    throw BundleError(what + ": " + repr_text(location) + " is not a usable path.");
  }
  // An engine resolves the location against the model's own directory, wherever that is.
  if (!bundle.covered()) {
    return read_regular(locate(spelled_path(bundle, model).parent_path(), location, what, bundle.allow_outside), what);
  }
  const std::string name = normal_path((fs::path(model).parent_path() / location).native());
  const auto found = bundle.files.find(name);
  if (found == bundle.files.end()) {
    throw BundleError(what + ": the seal of " + bundle.path.filename().native() + " does not cover '" + name +
                      "'. Export again.");
  }
  return read_verified(locate(bundle.directory(), name, what, true), found->second, what);
}

}  // namespace detail

/// A model whose bytes were verified, and those of the files that it names, by location.
struct Model {
  Bytes bytes;
  std::map<std::string, Bytes> external;
};

/// The files of a model in a directory that other users cannot write to, for engines that open external data by its path.
/// They are removed with this object; engines keep open what they need.
class UnpackedModel {
 public:
  explicit UnpackedModel(const Model& model) {
    std::string folder = (std::filesystem::temp_directory_path() / "leapp-XXXXXX").native();
    if (::mkdtemp(folder.data()) == nullptr) throw BundleError("There is no room for a copy of a model in " + folder + ".");
    folder_ = folder;
    try {
      for (const auto& [location, bytes] : model.external) write(folder_ / location, bytes);
      write(path(), model.bytes);
    } catch (...) {
      remove();
      throw;
    }
  }
  UnpackedModel(const UnpackedModel&) = delete;
  UnpackedModel& operator=(const UnpackedModel&) = delete;
  ~UnpackedModel() { remove(); }

  std::filesystem::path path() const { return folder_ / "leapp-model.onnx"; }

 private:
  static void write(const std::filesystem::path& path, const Bytes& bytes) {
    std::error_code error;
    std::filesystem::create_directories(path.parent_path(), error);
    // Never over another file: two locations may differ in spelling only.
    std::FILE* file = std::fopen(path.c_str(), "wbx");
    const bool written = file != nullptr && std::fwrite(bytes.data(), 1, bytes.size(), file) == bytes.size();
    if ((file != nullptr && std::fclose(file) != 0) || !written) {
      throw BundleError("The copy of a model " + path.native() + " cannot be written.");
    }
  }

  void remove() {
    std::error_code error;
    std::filesystem::remove_all(folder_, error);
  }

  std::filesystem::path folder_;
};

namespace detail {

inline Model with_external(const Bundle& bundle, Bytes bytes, const std::string& model, const std::string& label) {
  Model made{std::move(bytes), {}};
  for (const std::string& location : external_files(made.bytes, "model of " + label)) {
    made.external[location] = read_external(bundle, model, "external data of " + label, location);
  }
  return made;
}

}  // namespace detail

/// The verified model of a node. Loading an engine from the bytes leaves no moment to exchange a file.
inline Model read_model(const Bundle& bundle, const Node& node) {
  const std::string label = "node '" + node.name + "'";
  const std::filesystem::path path = detail::locate_model(bundle, node);
  Bytes bytes = detail::read_verified(path, node.model.sha256, "model of " + label);
  if (node.model.backend != "onnx") return {std::move(bytes), {}};
  return detail::with_external(bundle, std::move(bytes), *node.model.path, label);
}

/// The verified model of the whole pipeline, which `compile_graph(fuse=True)` writes beside the others.
inline Model read_fused(const Bundle& bundle) {
  std::vector<std::string> taken;
  for (const Node& node : bundle.contract.nodes) {
    if (node.model.path) taken.push_back(detail::folded(detail::normal_path(*node.model.path)));
  }
  std::string stem = bundle.graph();
  while (std::find(taken.begin(), taken.end(), detail::folded(stem + ".onnx")) != taken.end()) stem += "_fused";
  const std::string name = stem + ".onnx";
  return detail::with_external(bundle, detail::read_sealed(bundle, name), name, "the fused file '" + name + "'");
}

/// The initial values of all fed-back inputs by `node/port`; empty if the bundle has none.
inline std::map<std::string, RawTensor> read_initial_values(const Bundle& bundle) {
  if (!bundle.contract.initial_values) return {};
  const std::string& name = *bundle.contract.initial_values;
  auto values = decode_safetensors(detail::read_sealed(bundle, name), name);
  check_initial_values(values, bundle.contract, name);
  return values;
}

/// The recorded passes of every node, oldest first; empty if the bundle carries none.
inline std::map<std::string, std::vector<Sample>> read_samples(const Bundle& bundle) {
  const std::string name = bundle.graph() + "_samples.safetensors";
  std::error_code error;
  if (bundle.files.count(name) == 0 && !std::filesystem::exists(bundle.directory() / name, error)) return {};
  return decode_samples(detail::read_sealed(bundle, name), bundle.contract, name);
}

/// What a bundle's YAML says, without touching the files it names.
inline Contract load_contract(const std::filesystem::path& path) { return detail::load(detail::yaml_path(path)).contract; }

/// Open a bundle and check everything but the models, which `read_model` checks when it hands them out.
///
/// @param path The `.yaml` or `.yml` file, or the directory that holds exactly one bundle.
/// @param allow_outside Let files of an unsealed bundle lie outside its directory. Files whose sha256 is known may lie
/// anywhere.
/// @param expect_digest Refuse any bundle but the one with this digest; empty for any.
/// @param trust Files with public keys. Refuse a bundle that none of them signed, before anything of it is parsed.
inline Bundle open_bundle(const std::filesystem::path& path, bool allow_outside = false, const std::string& expect_digest = "",
                          const std::optional<Keys>& trust = {}) {
  Bundle bundle = detail::load(detail::yaml_path(path), trust);
  bundle.allow_outside = allow_outside;
  if (!expect_digest.empty() && bundle.digest != expect_digest) {
    std::string found = bundle.digest ? "has the digest " + *bundle.digest : "carries no seal";
    if (bundle.annotated) found += "; its annotations were changed after it was sealed";
    throw BundleError(bundle.path.filename().native() + ": expected the bundle with digest " + expect_digest + ", this one " +
                      found + ".");
  }
  std::vector<std::string> names;
  for (const Node& node : bundle.contract.nodes) {
    if (node.model.path) names.push_back(*node.model.path);
  }
  const std::vector<std::string> models = names;
  for (const auto& [name, sum] : bundle.files) names.push_back(name);
  detail::check_collisions(names);
  for (const Node& node : bundle.contract.nodes) {
    if (node.model.path) detail::locate_model(bundle, node);
  }
  // Models are hashed when they are read, so that they are read once.
  for (const auto& [name, sum] : bundle.files) {
    const auto same = [&, &name_ = name](const std::string& model) {
      return detail::normal_path(model) == detail::normal_path(name_);
    };
    if (std::none_of(models.begin(), models.end(), same)) detail::read_sealed(bundle, name);
  }
  read_initial_values(bundle);
  return bundle;
}

/// Check every file of a bundle, models and their external data included.
inline void check_files(const Bundle& bundle) {
  for (const auto& [name, sum] : bundle.files) detail::read_sealed(bundle, name);
  for (const Node& node : bundle.contract.nodes) {
    if (node.model.path) read_model(bundle, node);
  }
}

}  // namespace leapp
