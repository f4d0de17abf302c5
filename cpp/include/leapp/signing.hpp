// Whose bundle it is: its signature in the OpenSSF Model Signing format, checked before the description is parsed.
//
// `<graph>.sig` lists the sha256 of every file, signed with an elliptic curve key. The rules and words are those of
// src/leapp/bundle/signing.py. All cryptography is that of OpenSSL 3, which the CMake target leapp::signatures links; it defines
// LEAPP_SIGNATURES, for the whole program. Without it a program that asks for a signature is refused.
#pragma once

#include <array>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#ifdef LEAPP_SIGNATURES
#include <openssl/bio.h>
#include <openssl/err.h>
#include <openssl/evp.h>
#include <openssl/pem.h>
#endif

#include "errors.hpp"
#include "files.hpp"
#include "json.hpp"
#include "value.hpp"

namespace leapp {

/// Files with the public keys that are trusted, in PEM. Any of them will do.
using Keys = std::vector<std::string>;

/// A signature that fits.
struct Signature {
  std::string key;                           ///< The file of the public key that made it.
  std::map<std::string, std::string> files;  ///< The sha256 of every signed file, by its path in the directory.
};

namespace detail {

inline constexpr std::uint64_t max_signature = 4 << 20;
inline constexpr const char* payload_type = "application/vnd.in-toto+json";

/// Why a signature file, or what it signs, cannot be read.
struct SignatureError {
  std::string reason;
};

inline Value parse_json(std::string_view text) {
  if (not_utf8(text) != std::string_view::npos) throw SignatureError{"not JSON: not UTF-8 text"};
  try {
    return JsonReader(text).document();
  } catch (const JsonError& error) {
    throw SignatureError{"not JSON: " + error.reason};
  }
}

inline const Value& member(const Value& holder, const char* name, Value::Kind kind) {
  const Value* found = holder.is(Value::Kind::mapping) ? holder.find(name) : nullptr;
  if (found == nullptr || !found->is(kind)) {
    throw SignatureError{"'" + std::string(name) + "' is missing or has another type"};
  }
  return *found;
}

inline const std::string& text_member(const Value& holder, const char* name) {
  return member(holder, name, Value::Kind::text).text;
}

inline void check_types(const Value& first, const char* name, const Value& second, const char* other, const std::string& type,
                        const std::string& inner) {
  const bool fits = text_member(first, name) == type;
  if (text_member(second, other) != inner || !fits) throw SignatureError{"its type is not " + type + " with " + inner};
}

inline std::string decode_base64(const Value& holder, const char* name) {
  static constexpr std::string_view digits = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  std::string_view text = text_member(holder, name);
  const bool whole = text.size() % 4 == 0;
  for (int padding = 0; padding < 2 && !text.empty() && text.back() == '='; ++padding) text.remove_suffix(1);
  std::string made;
  std::uint32_t bits = 0;
  int held = 0;
  for (const char c : text) {
    const std::size_t digit = digits.find(c);
    if (!whole || digit == std::string_view::npos) throw SignatureError{"'" + std::string(name) + "' is not base64"};
    bits = (bits << 6 | static_cast<std::uint32_t>(digit)) & 0xffffff;
    held += 6;
    if (held >= 8) held -= 8, made += static_cast<char>(static_cast<unsigned char>(bits >> held));
  }
  if (!whole) throw SignatureError{"'" + std::string(name) + "' is not base64"};
  return made;
}

/// What a signature file holds: the signed text, and the signature over it.
struct Envelope {
  std::string payload, signature;
};

inline Envelope read_envelope(std::string_view text) {
  const Value bundle = parse_json(text);
  const Value& envelope = member(bundle, "dsseEnvelope", Value::Kind::mapping);
  check_types(bundle, "mediaType", envelope, "payloadType", "application/vnd.dev.sigstore.bundle.v0.3+json", payload_type);
  const std::vector<Value>& signatures = member(envelope, "signatures", Value::Kind::list).items;
  if (signatures.size() != 1) {
    throw SignatureError{"it holds " + std::to_string(signatures.size()) + " signatures, the format has one"};
  }
  std::string payload = decode_base64(envelope, "payload");
  return {std::move(payload), decode_base64(signatures[0], "sig")};
}

/// The sha256 of every file that a signed text lists, by name.
inline std::map<std::string, std::string> read_resources(std::string_view payload) {
  const Value statement = parse_json(payload);
  check_types(statement, "_type", statement, "predicateType", "https://in-toto.io/Statement/v1",
              "https://model_signing/signature/v1.0");
  const Value& predicate = member(statement, "predicate", Value::Kind::mapping);
  if (text_member(member(predicate, "serialization", Value::Kind::mapping), "method") != "files") {
    throw SignatureError{"it does not list whole files"};
  }
  std::map<std::string, std::string> found;
  for (const Value& one : member(predicate, "resources", Value::Kind::list).items) {
    const std::string &name = text_member(one, "name"), &digest = text_member(one, "digest");
    if (text_member(one, "algorithm") != "sha256" || !is_sha256(digest)) {
      throw SignatureError{"a file is listed without its sha256"};
    }
    if (not_utf8(name) != std::string_view::npos) throw SignatureError{"a file has a name that is not text"};
    if (!found.emplace(name, digest).second) throw SignatureError{"a file is listed twice"};
  }
  return found;
}

#ifdef LEAPP_SIGNATURES

struct Curve {
  const char* name;
  const char* openssl;
  const EVP_MD* (*hash)();
};

inline constexpr Curve curves[] = {
    {"secp256r1", "prime256v1", EVP_sha256}, {"secp384r1", "secp384r1", EVP_sha384}, {"secp521r1", "secp521r1", EVP_sha512}};

/// A trusted key.
class PublicKey {
 public:
  explicit PublicKey(const std::string& path) {
    const std::string pem = text_of(path);
    const std::unique_ptr<BIO, int (*)(BIO*)> memory(BIO_new_mem_buf(pem.data(), static_cast<int>(pem.size())), BIO_free);
    key_.reset(PEM_read_bio_PUBKEY(memory.get(), nullptr, nullptr, nullptr));
    if (key_ == nullptr) throw InputError(path + " is not a public key in PEM (" + reason() + ").");
    std::array<char, 64> group{};
    std::string names;
    const bool named = EVP_PKEY_is_a(key_.get(), "EC") == 1 &&
                       EVP_PKEY_get_group_name(key_.get(), group.data(), group.size(), nullptr) == 1;
    for (const Curve& curve : curves) {
      names += (names.empty() ? "" : ", ") + std::string(curve.name);
      if (named && std::string_view(group.data()) == curve.openssl) hash_ = curve.hash();
    }
    if (hash_ == nullptr) {
      throw InputError(path + " is not a key on one of the curves " + names +
                       ", which the format takes. Make one with 'openssl ecparam -name prime256v1 -genkey -noout -out key.pem'.");
    }
  }

  bool made(const std::string& signature, const std::string& text) const {
    const std::unique_ptr<EVP_MD_CTX, void (*)(EVP_MD_CTX*)> context(EVP_MD_CTX_new(), EVP_MD_CTX_free);
    const auto bytes = [](const std::string& from) { return reinterpret_cast<const unsigned char*>(from.data()); };
    const bool fits =
        context != nullptr && EVP_DigestVerifyInit(context.get(), nullptr, hash_, nullptr, key_.get()) == 1 &&
        EVP_DigestVerify(context.get(), bytes(signature), signature.size(), bytes(text), text.size()) == 1;
    ERR_clear_error();  // what a signature that does not fit leaves behind
    return fits;
  }

 private:
  static std::string text_of(const std::string& path) {
    constexpr std::size_t most = 1 << 20;
    errno = 0;
    std::ifstream file(path, std::ios::binary);
    std::string text;
    for (char c; text.size() < most && file.get(c);) text += c;
    if (!file.eof()) throw InputError(path + " is not a public key in PEM (" + unreadable(errno) + ").");
    return text;
  }

  static std::string unreadable(int code) { return code != 0 ? std::strerror(code) : "it is too long"; }

  static std::string reason() {
    const char* text = ERR_reason_error_string(ERR_peek_error());
    ERR_clear_error();
    return text != nullptr ? text : "it holds no key";
  }

  std::unique_ptr<EVP_PKEY, void (*)(EVP_PKEY*)> key_{nullptr, EVP_PKEY_free};
  const EVP_MD* hash_ = nullptr;
};

#else

class PublicKey {
 public:
  explicit PublicKey(const std::string&) {
    throw InputError("Signatures need OpenSSL: link the CMake target leapp::signatures, or do not ask for a signature.");
  }
  bool made(const std::string&, const std::string&) const { return false; }
};

#endif

/// Check the signature of a bundle against trusted keys. Reads nothing but the signature and the keys.
inline Signature verified_signature(const fs::path& description, const Keys& trust) {
  if (trust.empty()) throw InputError("trust names no key. Give the file of a public key.");
  std::vector<PublicKey> keys;
  std::string names;
  for (const std::string& path : trust) {
    keys.emplace_back(path);
    names += (names.empty() ? "" : " or ") + path;
  }
  const std::string bundle = description.filename().native();
  const fs::path path = fs::path(description).replace_extension(".sig");
  const std::string file = path.filename().native();
  Bytes data;
  try {
    data = read_regular(path, "signature", max_signature);
  } catch (const BundleFileError&) {
    const fs::path directory = description.has_parent_path() ? description.parent_path() : ".";
    throw BundleError(bundle + ": the bundle is not signed: there is no " + file + ". Sign it with 'leapp sign " +
                      as_argument(directory.native()) + " --key KEY', or do not ask for a signature.");
  }
  Envelope envelope;
  try {
    envelope = read_envelope({reinterpret_cast<const char*>(data.data()), data.size()});
  } catch (const SignatureError& error) {
    throw BundleError(file + " is damaged or not a signature: " + error.reason + ".");
  }
  // What is signed: the text with its type and length, as DSSE has it.
  const std::string type = payload_type;
  const std::string text = "DSSEv1 " + std::to_string(type.size()) + " " + type + " " +
                           std::to_string(envelope.payload.size()) + " " + envelope.payload;
  for (std::size_t i = 0; i < keys.size(); ++i) {
    if (!keys[i].made(envelope.signature, text)) continue;
    try {
      return {trust[i], read_resources(envelope.payload)};
    } catch (const SignatureError& error) {
      throw BundleError(file + " signs something that is not a list of files: " + error.reason + ".");
    }
  }
  throw BundleError(bundle + ": " + file + " was not made by the key " + names + ", or was changed.");
}

}  // namespace detail

}  // namespace leapp
