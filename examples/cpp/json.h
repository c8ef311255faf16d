// As much of JSON as the protocol needs: values by key, numbers as text, strings written back.
#pragma once

#include <cctype>
#include <map>
#include <stdexcept>
#include <string>
#include <vector>

struct Json {
  enum Kind { null, boolean, number, string, array, object } kind = null;
  std::string text;  // of a number or a string; "true" or "false"
  std::vector<Json> items;
  std::map<std::string, Json> fields;

  const Json& operator[](const std::string& key) const {
    static const Json absent;
    auto found = fields.find(key);
    return found == fields.end() ? absent : found->second;
  }
  long long integer() const { return std::stoll(text); }
};

class JsonReader {
 public:
  explicit JsonReader(const std::string& text) : next_(text.data()), end_(next_ + text.size()) {}

  Json value() {
    Json read;
    switch (peek()) {
      case '{':
        read.kind = Json::object;
        list('}', [&] {
          std::string key = quoted();
          expect(':');
          read.fields[key] = value();
        });
        return read;
      case '[':
        read.kind = Json::array;
        list(']', [&] { read.items.push_back(value()); });
        return read;
      case '"':
        read.kind = Json::string;
        read.text = quoted();
        return read;
      default:
        while (next_ != end_ && (std::isalnum(*next_) || *next_ == '-' || *next_ == '+' || *next_ == '.'))
          read.text += *next_++;
        if (read.text.empty()) throw std::runtime_error("a message is no JSON");
        if (read.text == "true" || read.text == "false") read.kind = Json::boolean;
        else if (read.text != "null") read.kind = Json::number;
        return read;
    }
  }

 private:
  char peek() {
    while (next_ != end_ && std::isspace(*next_)) ++next_;
    if (next_ == end_) throw std::runtime_error("a message ends too early");
    return *next_;
  }
  void expect(char wanted) {
    if (peek() != wanted) throw std::runtime_error("a message is no JSON");
    ++next_;
  }
  template <class Item>
  void list(char closing, Item item) {
    ++next_;
    if (peek() != closing) {
      item();
      while (peek() == ',') {
        ++next_;
        item();
      }
    }
    expect(closing);
  }
  std::string quoted() {  // names and words, whose only escapes are of single characters
    std::string read;
    for (expect('"'); next_ != end_ && *next_ != '"'; read += *next_++)
      if (*next_ == '\\' && ++next_ == end_) break;
    expect('"');
    return read;
  }

  const char *next_, *end_;
};
