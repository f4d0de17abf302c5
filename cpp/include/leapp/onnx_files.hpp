// Which other files an ONNX model would make its engine open.
//
// Walks the protobuf wire format just far enough to find external tensor data. Every length is checked against the message
// around it. Nothing of the model is interpreted.
#pragma once

#include <algorithm>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "errors.hpp"
#include "files.hpp"
#include "value.hpp"

namespace leapp::detail {

enum class Message { model, training, function, graph, node, attribute, sparse, tensor, entry, none };

/// The message held by a field of another. Field numbers are those of onnx.proto, which never change.
inline Message held(Message kind, std::uint64_t field) {
  struct Row {
    Message holder;
    std::uint64_t field;
    Message held;
  };
  static constexpr Row rows[] = {
      {Message::model, 7, Message::graph},         {Message::model, 20, Message::training},
      {Message::model, 25, Message::function},     {Message::training, 1, Message::graph},
      {Message::training, 2, Message::graph},      {Message::function, 7, Message::node},
      {Message::function, 11, Message::attribute}, {Message::graph, 1, Message::node},
      {Message::graph, 5, Message::tensor},        {Message::graph, 15, Message::sparse},
      {Message::node, 5, Message::attribute},      {Message::attribute, 5, Message::tensor},
      {Message::attribute, 6, Message::graph},     {Message::attribute, 10, Message::tensor},
      {Message::attribute, 11, Message::graph},    {Message::attribute, 22, Message::sparse},
      {Message::attribute, 23, Message::sparse},   {Message::sparse, 1, Message::tensor},
      {Message::sparse, 2, Message::tensor},       {Message::tensor, 13, Message::entry},
  };
  for (const Row& row : rows) {
    if (row.holder == kind && row.field == field) return row.held;
  }
  return Message::none;
}

/// Calls `each(field, bytes)` for every field that holds bytes. False if the message is cut off or damaged.
template <class Each>
bool for_fields(std::string_view message, Each each) {
  std::size_t at = 0;
  const auto number = [&](std::uint64_t& value) {
    value = 0;
    for (unsigned i = 0; i < 10 && at < message.size(); ++i) {
      const auto byte = static_cast<unsigned char>(message[at++]);
      if (7 * i < 64) value |= std::uint64_t{byte & 0x7fu} << 7 * i;
      if (byte < 0x80) return true;
    }
    return false;
  };
  while (at < message.size()) {
    std::uint64_t tag = 0, size = 0;
    if (!number(tag)) return false;
    const unsigned wire = tag & 7;
    if (wire == 0) {
      if (!number(size)) return false;
      continue;
    }
    if (wire == 2) {
      if (!number(size)) return false;
    } else if (wire == 1 || wire == 5) {
      size = wire == 1 ? 8 : 4;
    } else {
      return false;
    }
    if (size > message.size() - at) return false;
    if (wire == 2 && !each(tag >> 3, message.substr(at, size))) return false;
    at += size;
  }
  return true;
}

/// The locations of external data that a model names, without repeats. `what` says what the file is, for messages.
inline std::vector<std::string> external_files(const Bytes& model, const std::string& what) {
  constexpr std::size_t deepest = 64;
  const std::string_view whole(reinterpret_cast<const char*>(model.data()), model.size());
  std::vector<std::string> found;
  if (whole.find("location") == std::string_view::npos) return found;  // no tensor of it says where else its values are
  struct Part {
    Message kind;
    std::string_view body;
    std::size_t depth;
  };
  std::vector<Part> stack = {{Message::model, whole, 0}};
  while (!stack.empty()) {
    const Part part = stack.back();
    stack.pop_back();
    if (part.depth > deepest) {
      throw BundleError(what + ": graphs are nested deeper than " + std::to_string(deepest) + " levels.");
    }
    std::string_view key, location;
    const bool whole_message = for_fields(part.body, [&](std::uint64_t field, std::string_view body) {
      if (part.kind == Message::entry) {
        if (field == 1) key = body;
        if (field == 2) location = body;
        return not_utf8(body) == std::string_view::npos;
      }
      const Message inner = held(part.kind, field);
      if (inner != Message::none) stack.push_back({inner, body, part.depth + 1});
      return true;
    });
    if (!whole_message) throw BundleError(what + ": the file is not a complete ONNX model.");
    if (part.kind == Message::entry && key == "location" && std::find(found.begin(), found.end(), location) == found.end()) {
      found.emplace_back(location);
    }
  }
  return found;
}

}  // namespace leapp::detail
