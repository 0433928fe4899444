// Strings in the Huffman code of RFC 7541, appendix B.
#pragma once

#include <string>
#include <string_view>

namespace penstock::http2 {

// Appends what the bytes stand for; false where they are no such code.
bool append_huffman(std::string_view coded, std::string& text);

}  // namespace penstock::http2
