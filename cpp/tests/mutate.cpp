// Damaged descriptions, signatures, safetensors files and models: each is read or refused, without a crash.
//
//   mutate SEED COUNT FILE...    a loop of its own, for any compiler
//
// With LEAPP_LIBFUZZER, libFuzzer calls the same function with what it found: clang++ -fsanitize=fuzzer,address,undefined.
#include <fstream>
#include <iostream>
#include <iterator>
#include <random>

#include "leapp/bundle.hpp"
#include "leapp/plan.hpp"

extern "C" int LLVMFuzzerTestOneInput(const unsigned char* data, std::size_t size) {
  // What is read as text or as tensors, never as both.
  try {
    const std::string_view text(reinterpret_cast<const char*>(data), size);
    if (leapp::detail::not_utf8(text) == std::string_view::npos) {
      const leapp::Value document = leapp::parse_yaml(text, "g.yaml");
      leapp::detail::repr(document);
      const leapp::Contract contract = leapp::contract_of(document, "g.yaml");
      leapp::Bundle bundle;
      leapp::detail::check_seal(document, "g.yaml", bundle);
      leapp::make_plan(contract, {"onnx", "jit", "pt2"});
    }
  } catch (const leapp::Error&) {
  }
  const std::string_view given(reinterpret_cast<const char*>(data), size);
  try {
    leapp::detail::read_envelope(given);
  } catch (const leapp::detail::SignatureError&) {
  }
  try {
    leapp::detail::read_resources(given);
  } catch (const leapp::detail::SignatureError&) {
  }
  const leapp::Bytes bytes(data, data + size);
  try {
    leapp::decode_samples(bytes, leapp::Contract{}, "file");
  } catch (const leapp::Error&) {
  }
  try {
    leapp::detail::external_files(bytes, "model");
  } catch (const leapp::Error&) {
  }
  return 0;
}

#ifndef LEAPP_LIBFUZZER
namespace {

const std::vector<std::string> tokens = {"{",
                                         "[",
                                         "}",
                                         "]",
                                         ":",
                                         " - ",
                                         "&a ",
                                         "*a ",
                                         "!!python/name:os.system ",
                                         "<<: ",
                                         "? ",
                                         "|\n",
                                         "'",
                                         "\"",
                                         "\t",
                                         "# ",
                                         "~",
                                         "%YAML 1.1\n---\n",
                                         "---\n",
                                         "...\n",
                                         std::string(1, '\0'),
                                         "\xef\xbb\xbf",
                                         "\xe2\x80\xa8",
                                         "0x",
                                         "1e999",
                                         "1:30:30",
                                         "0b1_",
                                         "[0]",
                                         "99999999999999999999",
                                         "-1",
                                         ".inf",
                                         "1.5e+300",
                                         "\"data_offsets\":[0,",
                                         "\"shape\":[18446744073709551615]",
                                         "\"sig\":\"QQ==\"",
                                         "\"signatures\":[{}],",
                                         "location"};

std::string mutated(std::string text, std::mt19937_64& choose) {
  const auto below = [&](std::size_t limit) { return limit == 0 ? 0 : choose() % limit; };
  for (std::size_t rounds = 1 + below(4); rounds != 0; --rounds) {
    const std::size_t at = below(text.size()), size = 1 + below(60);
    switch (below(6)) {
      case 0: text.insert(at, tokens[below(tokens.size())]); break;
      case 1:
        if (!text.empty()) text[at] = static_cast<char>(below(256));
        break;
      case 2:
        if (!text.empty()) text[at] = static_cast<char>(text[at] ^ (1 << below(8)));
        break;
      case 3: text.erase(at, size); break;
      case 4: text.insert(at, text.substr(below(text.size()), size)); break;
      default: text.resize(at); break;
    }
  }
  return text;
}

}  // namespace

int main(int count, char** words) {
  if (count < 4) return 2;
  std::mt19937_64 choose(std::stoull(words[1]));
  std::vector<std::string> seeds;
  for (int i = 3; i < count; ++i) {
    std::ifstream file(words[i], std::ios::binary);
    seeds.emplace_back(std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>());
  }
  for (long done = 0; done < std::stol(words[2]); ++done) {
    const std::string text = mutated(seeds[choose() % seeds.size()], choose);
    LLVMFuzzerTestOneInput(reinterpret_cast<const unsigned char*>(text.data()), text.size());
  }
  std::cout << words[2] << " documents\n";
  return 0;
}
#endif
