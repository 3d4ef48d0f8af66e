// One call of one kernel on one instruction set, for a machine that only an emulator has: input on stdin, result on stdout.
//     one_call SET OP DTYPE ITEMSIZE ROWS COLUMNS
// OP is the number of an elementwise op, or -1 for rms_norm, whose weight follows x. Asked for a set of
// instructions that the CPU does not have, it prints the highest one and returns 3.
#include <cstdio>
#include <cstdlib>
#include <vector>

#include "kernels.cpp"

int main(int, char** given) {
    int set_number = atoi(given[1]), op = atoi(given[2]), dtype = atoi(given[3]);
    size_t item = size_t(atoi(given[4])), rows = size_t(atol(given[5])), columns = size_t(atol(given[6]));
    if (gt_use_set(set_number) < 0) return std::printf("%d", highest_set()), 3;
    std::vector<char> x(rows * columns * item), y(x.size()), w(columns * (dtype == 1 ? 8 : 4));
    if (std::fread(x.data(), 1, x.size(), stdin) != x.size()) return 4;
    if (op < 0 && std::fread(w.data(), 1, w.size(), stdin) != w.size()) return 4;
    gt_set_threads(2);
    if (op < 0)
        gt_rms_norm(dtype, x.data(), w.data(), y.data(), nullptr, rows, columns, 1e-6);
    else
        gt_elementwise(op, dtype, x.data(), y.data(), rows * columns);
    return std::fwrite(y.data(), 1, y.size(), stdout) == y.size() ? 0 : 5;
}
