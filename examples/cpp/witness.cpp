// The witness family in C++, as a worker: docs/worker-protocol.md.
//
//   g++ -O2 -std=c++17 -o witness witness.cpp
//
// A frame is 16 bytes, "SCW1", the size of a message and that of its buffers, and then those two.

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <limits>
#include <optional>
#include <string>
#include <vector>

#include "json.h"

using i32 = std::int32_t;
using i64 = std::int64_t;

// A call that the specification refuses.
struct Refusal : std::runtime_error {
  using std::runtime_error::runtime_error;
};

void require(bool holds, const char* otherwise) {
  if (!holds) throw Refusal(otherwise);
}

// --- the policy ----------------------------------------------------------------------------------

// A tensor in the storage that came with it.
struct Tensor {
  char* storage;
  std::string dtype;
  std::vector<i64> shape, strides;
  i64 offset;

  template <class T>
  T& at(std::initializer_list<i64> index) const {
    i64 element = offset, dim = 0;
    for (i64 i : index) element += i * strides[dim++];
    return reinterpret_cast<T*>(storage)[element];
  }
};

void check(const Tensor& learned, const Tensor& lengths) {
  require(learned.dtype == "int32" && learned.shape.size() == 2, "learned rows must be int32, 2-D");
  require(lengths.shape.size() == 1 && lengths.shape[0] == learned.shape[0],
          "context_lens must be 1-D, one a row");
  require(lengths.dtype == "int32" || lengths.dtype == "int64", "context_lens must be integers");
}

i64 length_of(const Tensor& lengths, i64 row) {
  return lengths.dtype == "int64" ? lengths.at<i64>({row}) : lengths.at<i32>({row});
}

// The left edge of each segment of a row that no learned entry marks; -1 elsewhere.
std::vector<i32> witnesses(const Tensor& learned, i64 row, i64 length, i64 segments) {
  i64 divisor = std::max<i64>(length, 1), effective = std::min(segments, divisor);
  std::vector<i32> edges(segments, -1);
  for (i64 s = 0; s < std::min(segments, length); ++s)  // the first token x with floor(x * effective / length) = s
    edges[s] = i32((__int128(s) * length + effective - 1) / effective);
  for (i64 slot = 0; slot < learned.shape[1]; ++slot) {
    i64 token = learned.at<i32>({row, slot});
    if (token >= 0)  // past the context, it marks the last segment asked for
      edges[std::min<i64>(i64(__int128(token) * effective / divisor), segments - 1)] = -1;
  }
  return edges;
}

std::vector<i32> topology_witness_indices(const Tensor& lengths, const Tensor& learned, i64 segments,
                                          i32 poison) {
  check(learned, lengths);
  require(segments >= 1, "num_segments must be positive");
  std::vector<i32> all(learned.shape[0] * segments, poison);
  for (i64 row = 0; row < learned.shape[0]; ++row) {
    auto edges = witnesses(learned, row, length_of(lengths, row), segments);
    std::copy(edges.begin(), edges.end(), all.begin() + row * segments);
  }
  return all;
}

std::vector<i32> apply_topology_witnesses(const Tensor& learned, const Tensor& lengths, i64 keep,
                                          i64 segments, i64 most, i32 poison) {
  check(learned, lengths);
  i64 topk = learned.shape[1];
  require(0 <= keep && keep <= topk, "learned_keep must be in [0, topk]");
  require(1 <= segments && segments <= 64, "num_segments must be in [1, 64]");
  require(most >= 0, "max_replacements must not be negative");
  std::vector<i32> merged(learned.shape[0] * topk, poison);
  for (i64 row = 0; row < learned.shape[0]; ++row) {
    for (i64 slot = 0; slot < topk; ++slot) merged[row * topk + slot] = learned.at<i32>({row, slot});
    i64 slot = keep;
    for (i32 edge : witnesses(learned, row, length_of(lengths, row), segments))
      if (edge >= 0 && slot < topk && slot - keep < most) merged[row * topk + slot++] = edge;
  }
  return merged;
}

void scatter_topology_witnesses(const Tensor& rows, const Tensor& lengths, i64 segments) {
  check(rows, lengths);
  require(0 <= segments && segments <= 64, "num_segments must be in [0, 64]");
  if (segments == 0) return;
  i64 topk = rows.shape[1];
  auto merged = apply_topology_witnesses(rows, lengths, std::max<i64>(topk - segments, 0), segments,
                                         segments, 0);
  for (i64 row = 0; row < rows.shape[0]; ++row)
    for (i64 slot = 0; slot < topk; ++slot) rows.at<i32>({row, slot}) = merged[row * topk + slot];
}

// --- frames --------------------------------------------------------------------------------------

struct Frame {
  std::string message, buffers;
};

bool read_exactly(char* into, std::size_t size) { return std::fread(into, 1, size, stdin) == size; }

std::optional<Frame> receive() {  // nothing where the harness has gone
  char magic[4];
  std::uint32_t message;
  std::uint64_t buffers;
  if (!read_exactly(magic, 4) || std::memcmp(magic, "SCW1", 4)) return {};
  if (!read_exactly(reinterpret_cast<char*>(&message), 4)) return {};
  if (!read_exactly(reinterpret_cast<char*>(&buffers), 8)) return {};
  Frame frame{std::string(message, 0), std::string(buffers, 0)};
  if (!read_exactly(frame.message.data(), message)) return {};
  if (!read_exactly(frame.buffers.data(), buffers)) return {};
  return frame;
}

void send(const std::string& message, const std::string& buffers = "") {
  std::uint32_t size = message.size();
  std::uint64_t rest = buffers.size();
  std::fwrite("SCW1", 1, 4, stdout);
  std::fwrite(&size, 1, 4, stdout);
  std::fwrite(&rest, 1, 8, stdout);
  std::fwrite(message.data(), 1, message.size(), stdout);
  std::fwrite(buffers.data(), 1, buffers.size(), stdout);
  std::fflush(stdout);
}

// --- calls ---------------------------------------------------------------------------------------

std::vector<i64> integers(const Json& list) {
  std::vector<i64> read;
  for (const Json& item : list.items) read.push_back(item.integer());
  return read;
}

std::size_t size_of(const std::string& dtype) {
  if (dtype == "bool" || dtype.find("int8") != std::string::npos) return 1;
  return dtype.find("16") != std::string::npos ? 2 : dtype.find("64") != std::string::npos ? 8 : 4;
}

// The arguments of a call by name; their storages are copied, which aligns them.
struct Arguments {
  const Json& call;
  std::map<std::string, std::vector<i64>> storages;
  std::vector<std::pair<char*, std::size_t>> in_order;

  Arguments(const Json& call, std::vector<std::string> order, const std::string& buffers)
      : call(call) {
    std::size_t position = 0;
    for (const std::string& name : order) {
      const Json& argument = call["arguments"][name];
      if (argument["type"].text != "tensor") continue;
      if (!argument["parts"].items.empty()) throw std::runtime_error("a storage in parts");
      std::size_t bytes = argument["elements"].integer() * size_of(argument["dtype"].text);
      auto& storage = storages[name];
      storage.resize((bytes + 7) / 8);
      std::memcpy(storage.data(), buffers.data() + position, bytes);
      in_order.emplace_back(reinterpret_cast<char*>(storage.data()), bytes);
      position += bytes;
    }
  }
  i64 integer(const char* name) const { return call["arguments"][name].integer(); }
  Tensor tensor(const char* name) {
    const Json& it = call["arguments"][name];
    return {reinterpret_cast<char*>(storages[name].data()), it["dtype"].text,
            integers(it["shape"]), integers(it["strides"]), it["offset"].integer()};
  }
  std::string taken_back() const {
    std::string all;
    for (auto [start, bytes] : in_order) all.append(start, bytes);
    return all;
  }
};

// Parameters by operation, in the order of their buffers.
const std::map<std::string, std::vector<std::string>> operations = {
    {"topology_witness_indices", {"context_lens", "learned_indices"}},
    {"apply_topology_witnesses", {"learned_indices", "context_lens"}},
    {"scatter_topology_witnesses_", {"topk_indices", "context_lens"}},
};

void answer(const Json& call, const std::string& buffers) {
  const std::string &operation = call["operation"].text, number = call["number"].text;
  const i32 poison = call["poison"].text == "high" ? std::numeric_limits<i32>::max()
                                                   : std::numeric_limits<i32>::min();
  Arguments given(call, operations.at(operation), buffers);
  try {
    std::vector<i32> result;
    std::string results;
    auto shape = [&](i64 rows, i64 columns) {
      results = R"({"type": "tensor", "dtype": "int32", "shape": [)" + std::to_string(rows) + ", " +
                std::to_string(columns) + "]}";
    };
    if (operation == "topology_witness_indices") {
      Tensor learned = given.tensor("learned_indices");
      i64 segments = given.integer("num_segments");
      result = topology_witness_indices(given.tensor("context_lens"), learned, segments, poison);
      shape(learned.shape[0], segments);
    } else if (operation == "apply_topology_witnesses") {
      Tensor learned = given.tensor("learned_indices");
      result = apply_topology_witnesses(learned, given.tensor("context_lens"),
                                        given.integer("learned_keep"), given.integer("num_segments"),
                                        given.integer("max_replacements"), poison);
      shape(learned.shape[0], learned.shape[1]);
    } else {
      scatter_topology_witnesses(given.tensor("topk_indices"), given.tensor("context_lens"),
                                 given.integer("num_segments"));
    }
    std::string body = given.taken_back();
    body.append(reinterpret_cast<const char*>(result.data()), result.size() * sizeof(i32));
    send(R"({"type": "result", "number": )" + number + R"(, "results": [)" + results + "]}", body);
  } catch (const Refusal& refusal) {
    send(R"({"type": "refusal", "number": )" + number + R"(, "message": ")" + refusal.what() + "\"}",
         given.taken_back());
  }
}

int main() {
  while (auto frame = receive()) {
    Json message = JsonReader(frame->message).value();
    if (message["type"].text == "call") {
      answer(message, frame->buffers);
      continue;
    }
    std::string names;
    for (auto& [name, order] : operations) names += (names.empty() ? "\"" : ", \"") + name + "\"";
    send(R"({"type": "hello", "protocol": 1, "device": "cpu", "operations": [)" + names + "]}");
  }
}
