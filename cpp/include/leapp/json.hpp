// JSON as headers of safetensors files and signatures use it, read into plain data with bounds. A key that appears twice is refused.
#pragma once

#include <string>
#include <string_view>
#include <unordered_set>

#include "value.hpp"
#include "yaml.hpp"

namespace leapp::detail {

/// Thrown for text that is not JSON; whoever reads a file says which.
struct JsonError {
  std::string reason;
};

class JsonReader {
 public:
  explicit JsonReader(std::string_view text) : text_(text) {}

  Value document() {
    blanks();
    Value made = value(0);
    blanks();
    if (at_ != text_.size()) fail("extra data");
    return made;
  }

 private:
  static constexpr std::size_t deepest = 200;

  [[noreturn]] void fail(const std::string& what) const { throw JsonError{what + " at character " + std::to_string(at_)}; }

  char peek() const { return at_ < text_.size() ? text_[at_] : '\0'; }

  void blanks() {
    while (peek() == ' ' || peek() == '\n' || peek() == '\r' || peek() == '\t') ++at_;
  }

  bool take(std::string_view word) {
    if (text_.substr(at_, word.size()) != word) return false;
    at_ += word.size();
    return true;
  }

  Value value(std::size_t depth) {
    if (depth > deepest) fail("nested too deeply");
    Value made;
    if (peek() == '{') return mapping(depth);
    if (peek() == '[') return list(depth);
    if (peek() == '"') {
      made.kind = Value::Kind::text;
      made.text = text();
      return made;
    }
    if (take("null")) return made;
    made.kind = Value::Kind::boolean;
    if (take("true")) return made.boolean = true, made;
    if (take("false")) return made;
    made.kind = Value::Kind::real;
    if (take("NaN")) return made.real = std::nan(""), made;
    if (take("Infinity")) return made.real = HUGE_VAL, made;
    if (take("-Infinity")) return made.real = -HUGE_VAL, made;
    return number();
  }

  void digits() {
    const std::size_t from = at_;
    while (peek() >= '0' && peek() <= '9') ++at_;
    if (at_ == from) fail("expected a value");
  }

  Value number() {
    const std::size_t from = at_;
    take("-");
    if (!take("0")) digits();
    Value made;
    made.kind = Value::Kind::integer;
    const auto digit = [&](std::size_t at) { return at < text_.size() && text_[at] >= '0' && text_[at] <= '9'; };
    if (peek() == '.' && digit(at_ + 1)) ++at_, digits(), made.kind = Value::Kind::real;
    if (peek() == 'e' || peek() == 'E') {
      const bool sign = at_ + 1 < text_.size() && (text_[at_ + 1] == '-' || text_[at_ + 1] == '+');
      if (digit(at_ + (sign ? 2 : 1))) at_ += sign ? 2 : 1, digits(), made.kind = Value::Kind::real;
    }
    made.text = text_.substr(from, at_ - from);
    if (made.text == "-0") made.text = "0";
    if (made.is(Value::Kind::real)) made.real = to_double(made.text), made.text.clear();
    return made;
  }

  char32_t code() {
    char32_t made = 0;
    for (int i = 0; i < 4; ++i, ++at_) {
      const char c = peek();
      const bool letter = (c | 32) >= 'a' && (c | 32) <= 'f';
      if (!letter && (c < '0' || c > '9')) fail("invalid \\u escape");
      made = made << 4 | static_cast<char32_t>(letter ? (c | 32) - 'a' + 10 : c - '0');
    }
    return made;
  }

  std::string text() {
    ++at_;
    std::string made;
    for (;;) {
      if (at_ == text_.size()) fail("unterminated string");
      const char c = text_[at_++];
      if (c == '"') return made;
      if (static_cast<unsigned char>(c) < 0x20) fail("control character in a string");
      if (c != '\\') {
        made += c;
        continue;
      }
      const char escape = peek();
      ++at_;
      static constexpr std::string_view known = "\"\\/bfnrt", meant = "\"\\/\b\f\n\r\t";
      if (const std::size_t which = known.find(escape); escape != '\0' && which != std::string_view::npos) {
        made += meant[which];
      } else if (escape == 'u') {
        char32_t found = code();
        if (found >= 0xd800 && found < 0xdc00 && text_.substr(at_, 2) == "\\u") {
          const std::size_t back = at_;
          at_ += 2;
          const char32_t low = code();
          if (low >= 0xdc00 && low < 0xe000) {
            found = 0x10000 + ((found - 0xd800) << 10) + (low - 0xdc00);
          } else {
            at_ = back;
          }
        }
        append_utf8(made, found);
      } else {
        fail("invalid \\escape");
      }
    }
  }

  Value list(std::size_t depth) {
    Value made;
    made.kind = Value::Kind::list;
    ++at_;
    blanks();
    if (take("]")) return made;
    for (;;) {
      blanks();
      made.items.push_back(value(depth + 1));
      blanks();
      if (take("]")) return made;
      if (!take(",")) fail("expected ',' delimiter");
    }
  }

  Value mapping(std::size_t depth) {
    Value made;
    made.kind = Value::Kind::mapping;
    std::unordered_set<std::string> seen;
    ++at_;
    blanks();
    if (take("}")) return made;
    for (;;) {
      blanks();
      if (peek() != '"') fail("expected a name in quotes");
      Value key;
      key.kind = Value::Kind::text;
      key.text = text();
      if (!seen.insert(key.text).second) throw JsonError{"a key appears twice"};
      blanks();
      if (!take(":")) fail("expected ':' delimiter");
      blanks();
      Value item = value(depth + 1);
      made.entries.emplace_back(std::move(key), std::move(item));
      blanks();
      if (take("}")) return made;
      if (!take(",")) fail("expected ',' delimiter");
    }
  }

  std::string_view text_;
  std::size_t at_ = 0;
};

}  // namespace leapp::detail
