// Runs bundles for the tests in tests/cpp.
//
//   driver run BUNDLE INPUTS OUTPUTS STEPS [rows=N] [fused]   raw values of all inputs, step after step, in; of all outputs out
//   driver try                                                lines "MODE PATH" on stdin; "ok ..." or "refused ..." on stdout
//                                                             MODE is contract, files, outside, run, swap, or signed=KEY,KEY
//   driver verify BUNDLE                                      replay the samples
//   driver ports BUNDLE                                       the catalogue
#include <fstream>
#include <iostream>
#include <iterator>

#include "leapp/pipeline.hpp"
#ifdef LEAPP_OPENVINO
#include "leapp/openvino.hpp"
using Chosen = leapp::OpenVino;
#else
#include "leapp/onnxruntime.hpp"
using Chosen = leapp::OnnxRuntime;
#endif

namespace {

int run(int count, char** words) {
  leapp::Options options;
  std::int64_t rows = 0;
  for (int i = 6; i < count; ++i) {
    const std::string word = words[i];
    if (word.rfind("rows=", 0) == 0) rows = std::stoll(word.substr(5));
    if (word == "fused") options.fused = true;
  }
  Chosen engine;
  leapp::Pipeline pipeline(words[2], engine, options);
  if (rows != 0) pipeline.reset_batch(rows);
  std::ifstream given(words[3], std::ios::binary);
  std::ofstream made(words[4], std::ios::binary);
  for (long step = 0; step < std::stol(words[5]); ++step) {
    for (const std::string& key : pipeline.inputs()) {
      given.read(reinterpret_cast<char*>(pipeline.write_bytes(key)), static_cast<std::streamsize>(pipeline.input_bytes(key)));
    }
    if (!given) throw std::runtime_error("the inputs end early");
    pipeline.step();
    for (const std::string& key : pipeline.outputs()) {
      made.write(reinterpret_cast<const char*>(pipeline.read_bytes(key)),
                 static_cast<std::streamsize>(pipeline.output_bytes(key)));
    }
  }
  return 0;
}

/// An engine beside another process, which exchanges the files of a bundle once they are verified.
class Swapped : public Chosen {
 public:
  explicit Swapped(std::filesystem::path folder) : folder_(std::move(folder)) {}

  std::unique_ptr<leapp::Session> open(const leapp::Model& model, const leapp::Node& node) override {
    for (const auto& entry : std::filesystem::directory_iterator(folder_)) {
      if (entry.path().extension() != ".yaml") std::ofstream(entry.path(), std::ios::binary) << "swapped";
    }
    return Chosen::open(model, node);
  }

 private:
  std::filesystem::path folder_;
};

/// The words between commas.
leapp::Keys split(const std::string& text) {
  leapp::Keys words;
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t end = std::min(text.find(',', at), text.size());
    words.push_back(text.substr(at, end - at));
    at = end + 1;
  }
  return words;
}

std::string attempt(const std::string& mode, const std::string& path) {
  if (mode == "contract") {
    const leapp::Bundle bundle = leapp::detail::load(leapp::detail::yaml_path(path));
    std::string names;
    for (const leapp::Node& node : bundle.contract.nodes) names += " " + leapp::detail::json_text(node.name);
    return bundle.digest.value_or("unsealed") + names;
  }
  if (mode == "files" || mode == "outside") {
    const leapp::Bundle bundle = leapp::open_bundle(path, mode == "outside");
    leapp::check_files(bundle);
    leapp::read_samples(bundle);
    return bundle.digest.value_or("unsealed");
  }
  leapp::Options options;
  if (mode.rfind("signed=", 0) == 0) options.trust = split(mode.substr(7));
  Chosen plain;
  Swapped swapped(std::filesystem::path(path).parent_path());
  leapp::Pipeline pipeline(path, mode == "swap" ? swapped : plain, options);
  std::string bits;
  for (int step = 0; step < 3; ++step) {
    for (const std::string& key : pipeline.inputs()) {
      // 0x3f in every byte is a small positive number in all dtypes.
      std::memset(pipeline.write_bytes(key), 0x3f, pipeline.input_bytes(key));
    }
    pipeline.step();
    for (const std::string& key : pipeline.outputs()) {
      bits.append(reinterpret_cast<const char*>(pipeline.read_bytes(key)), pipeline.output_bytes(key));
    }
  }
  return leapp::sha256(bits.data(), bits.size());
}

int try_all() {
  for (std::string line; std::getline(std::cin, line);) {
    const std::size_t blank = line.find(' ');
    try {
      const std::string said = attempt(line.substr(0, blank), line.substr(blank + 1));
      std::cout << "ok " << said << std::endl;
    } catch (const leapp::Error& error) {
      std::cout << "refused " << leapp::detail::json_text(error.what()) << std::endl;
    }
  }
  return 0;
}

int verify(const char* path) {
  Chosen engine;
  leapp::Pipeline pipeline(path, engine);
  const leapp::Verification found = pipeline.verify();
  for (const std::string& problem : found.problems) std::cout << problem << "\n";
  std::cout << found.passes << " passes, " << found.problems.size() << " problems, " << found.random.size() << " random\n";
  return found.passed() ? 0 : 1;
}

int ports(const char* path) {
  Chosen engine;
  const leapp::Pipeline pipeline(path, engine);
  for (const leapp::PortInfo& port : pipeline.ports()) {
    std::cout << port.role << '\t' << port.key << '\t' << port.dtype << '\t' << leapp::detail::sizes_text(port.shape) << '\t'
              << port.kind.value_or("None") << '\t' << (port.units ? leapp::detail::str(*port.units) : "None") << '\t'
              << leapp::detail::list_text(port.element_names) << '\n';
  }
  return 0;
}

}  // namespace

int main(int count, char** words) {
  const std::string mode = count > 1 ? words[1] : "";
  try {
    if (mode == "run" && count > 5) return run(count, words);
    if (mode == "try") return try_all();
    if (mode == "verify" && count > 2) return verify(words[2]);
    if (mode == "ports" && count > 2) return ports(words[2]);
  } catch (const std::exception& error) {
    std::cerr << error.what() << "\n";
    return 1;
  }
  std::cerr << "driver run|try|verify|ports ...\n";
  return 2;
}
