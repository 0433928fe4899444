// How the attention of a batch is cut into items.
#include <algorithm>
#include <cmath>

#include "model.h"

namespace penstock {

namespace {
constexpr int ITEMS_PER_THREAD = 4;  // so that one that comes late or not at all costs little
}

View Model::view_of(const BatchShape& batch, bool logits_only, const LayerShape& layer, int threads) const {
  View view;
  const int* const first_blocks = batch.first_blocks + static_cast<long>(layer.group) * batch.spans;
  const int* logit_row = batch.logit_row;
  const int* const logit_end = logit_row + batch.logit_rows;
  int first = 0;
  double keys = 0;  // that all rows together look at, about
  for (int span = 0; span < batch.spans; first += batch.counts[span++]) {
    const int end = first + batch.counts[span];
    logit_row = std::lower_bound(logit_row, logit_end, first);
    const int from = !logits_only ? first : logit_row != logit_end && *logit_row < end ? *logit_row : end;
    if (from == end) continue;
    const int position = batch.starts[span] + from - first, count = end - from;
    const int seen = layer.window > 0 ? std::max(0, position - layer.window + 1) : 0;
    view.spans.push_back({position, count, from, static_cast<int>(view.sources.size()),
                          batch.blocks + first_blocks[span], seen / PARTITION_KEYS,
                          (position + count - 1) / PARTITION_KEYS + 1});
    for (int row = from; row < end; ++row) view.sources.push_back(row);
    keys += static_cast<double>(count) * (position + count - seen);
  }
  for (int span = 0; span < static_cast<int>(view.spans.size()); ++span)
    add_items(view, span, std::max(1, threads / batch.spans),
              threads > 1 ? keys / (threads * ITEMS_PER_THREAD) : INFINITY);
  return view;
}

// A short span takes its KV heads together, as they lie in memory, as far as every thread gets something.
// Where its rows together look at more keys than is fair for one item, partitions of them are items of their
// own.
void Model::add_items(View& view, int number, int shares, double fair_keys) const {
  const QuerySpan& span = view.spans[number];
  const int group = shape_.heads / shape_.kv_heads, most = std::max(1, QUERY_ROWS / group);
  const int together = Attention<float>::most_heads(span.rows, group);
  const int partitions = span.end_partition - span.first_partition;
  const int fair = static_cast<int>(std::min<double>(partitions, fair_keys / span.rows / PARTITION_KEYS));
  if (span.rows <= most && fair < partitions) {
    const int size = std::max(1, fair), pieces = (partitions + size - 1) / size;
    const int heads =
        std::min(std::max(1, shape_.kv_heads * pieces / shares), std::min(together, shape_.kv_heads));
    const long apart = static_cast<long>(span.rows) * shape_.heads;
    for (int from = span.first_partition; from < span.end_partition; from += size)
      for (int head = 0; head < shape_.kv_heads; head += heads)
        view.items.push_back({number, head, std::min(heads, shape_.kv_heads - head), 0, span.rows, from,
                              std::min(from + size, span.end_partition),
                              view.sums + (from - span.first_partition) * apart});
    for (int row = 0; row < span.rows; ++row)
      for (int head = 0; head < shape_.kv_heads; ++head)
        view.shared.push_back({number, row, head, view.sums});
    view.sums += partitions * apart;
    return;
  }
  const int heads = std::min(std::max(1, shape_.kv_heads / shares), together);
  for (int at = (span.rows - 1) / most * most; at >= 0; at -= most)
    for (int head = 0; head < shape_.kv_heads; head += heads)
      view.items.push_back({number, head, std::min(heads, shape_.kv_heads - head), at,
                            std::min(most, span.rows - at), 0, span.end_partition, -1});
}

}  // namespace penstock
