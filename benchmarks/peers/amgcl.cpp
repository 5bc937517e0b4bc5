// A program that solves one system with AMGCL (D. Demidov, 2019), again and again, for benchmarks/peers/amgcl.py.
//
// AMGCL is header-only; its sources are in no way part of this repository:
//     g++ -O3 -march=native -fopenmp -DAMGCL_NO_BOOST -I <folder of amgcl/> benchmarks/peers/amgcl.cpp -o <program>
//
// program SYSTEM X : reads SYSTEM, prints "ready", and for each line "SETTING METHOD RTOL MOST" of its input solves
// once, from the matrix in memory on, writes x to the file X, and prints "ITERATIONS SETUP SOLVE", in seconds, or
// "failed: ..." . SYSTEM : int64 n, entries, modes; then int32 indptr and indices, float64 data, b, and near null space
// (n, modes) in C order. X : float64 (n,).
// SETTING : "aggregation" (smoothed), "ruge_stuben", each with SPAI-0; "modes", "modes_block": smoothed aggregation
// with the near null space and nodes of three unknowns, in scalars and in blocks; "modes" with three vectors, those of a
// plane, without nodes, since AMGCL cuts coarse matrices, too, into nodes of as many unknowns. METHOD : "cg" or
// "bicgstab".
// Columns have 32 bits; AMGCL's default, 64, moves more memory.
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <functional>
#include <iostream>
#include <map>
#include <sstream>
#include <stdexcept>
#include <string>
#include <vector>

#include <amgcl/adapter/block_matrix.hpp>
#include <amgcl/adapter/crs_tuple.hpp>
#include <amgcl/amg.hpp>
#include <amgcl/backend/builtin.hpp>
#include <amgcl/coarsening/as_scalar.hpp>
#include <amgcl/coarsening/ruge_stuben.hpp>
#include <amgcl/coarsening/smoothed_aggregation.hpp>
#include <amgcl/make_block_solver.hpp>
#include <amgcl/make_solver.hpp>
#include <amgcl/relaxation/spai0.hpp>
#include <amgcl/solver/bicgstab.hpp>
#include <amgcl/solver/cg.hpp>
#include <amgcl/value_type/static_matrix.hpp>

constexpr int UNKNOWNS = 3;  // of a node

using Scalars = amgcl::backend::builtin<double, int, int>;
using Blocks = amgcl::backend::builtin<amgcl::static_matrix<double, UNKNOWNS, UNKNOWNS>, int, int>;

template <class Backend>
using Aggregation = amgcl::amg<Backend, amgcl::coarsening::smoothed_aggregation, amgcl::relaxation::spai0>;
template <class Backend>
using RugeStuben = amgcl::amg<Backend, amgcl::coarsening::ruge_stuben, amgcl::relaxation::spai0>;
using AggregationOfBlocks =
    amgcl::amg<Blocks, amgcl::coarsening::as_scalar<amgcl::coarsening::smoothed_aggregation>::type,
               amgcl::relaxation::spai0>;

struct System {
    std::int64_t n = 0, entries = 0, modes = 0;
    std::vector<int> indptr, indices;
    std::vector<double> data, b, space, x;
};

struct Order {
    double rtol;
    std::size_t most;
};

struct Outcome {
    std::size_t iterations;
    double setup, solve;
};

template <class T>
void read(std::FILE* file, std::vector<T>& values, std::size_t count)
{
    values.resize(count);
    if (std::fread(values.data(), sizeof(T), count, file) != count)
        throw std::runtime_error("the system ends early");
}

System read_system(const char* path)
{
    std::FILE* file = std::fopen(path, "rb");
    if (!file)
        throw std::runtime_error(std::string("there is no ") + path);
    System s;
    std::vector<std::int64_t> head;
    read(file, head, 3);
    s.n = head[0], s.entries = head[1], s.modes = head[2];
    read(file, s.indptr, s.n + 1);
    read(file, s.indices, s.entries);
    read(file, s.data, s.entries);
    read(file, s.b, s.n);
    read(file, s.space, s.n * s.modes);
    std::fclose(file);
    return s;
}

template <class Parameters>
void use_modes(const System& s, Parameters& coarsening, int unknowns)
{
    coarsening.aggr.block_size = unknowns;
    coarsening.nullspace.cols = int(s.modes);
    coarsening.nullspace.B = s.space;
}

template <class Solver>
Outcome solved(System& s, const Order& order, const std::function<void(typename Solver::params&)>& set)
{
    using clock = std::chrono::steady_clock;
    const auto begin = clock::now();
    typename Solver::params parameters;
    parameters.solver.tol = order.rtol;
    parameters.solver.maxiter = order.most;
    set(parameters);
    Solver solver(std::tie(s.n, s.indptr, s.indices, s.data), parameters);
    const auto middle = clock::now();
    s.x.assign(s.n, 0.0);
    const std::size_t iterations = std::get<0>(solver(s.b, s.x));
    const auto end = clock::now();
    return {iterations, std::chrono::duration<double>(middle - begin).count(),
            std::chrono::duration<double>(end - middle).count()};
}

template <template <class> class Preconditioner, class Method>
Outcome plain(System& s, const Order& order)
{
    return solved<amgcl::make_solver<Preconditioner<Scalars>, Method>>(s, order, [](auto&) {});
}

template <class Method>
Outcome with_modes(System& s, const Order& order)
{
    return solved<amgcl::make_solver<Aggregation<Scalars>, Method>>(
        s, order, [&](auto& parameters) { use_modes(s, parameters.precond.coarsening, s.modes == 3 ? 1 : UNKNOWNS); });
}

template <class Method>
Outcome with_modes_in_blocks(System& s, const Order& order)
{
    return solved<amgcl::make_block_solver<AggregationOfBlocks, Method>>(
        s, order, [&](auto& parameters) { use_modes(s, parameters.precond.coarsening, UNKNOWNS); });
}

using Cg = amgcl::solver::cg<Scalars>;
using Bicgstab = amgcl::solver::bicgstab<Scalars>;
using CgOfBlocks = amgcl::solver::cg<Blocks>;

const std::map<std::string, Outcome (*)(System&, const Order&)> SOLVERS = {
    {"aggregation cg", plain<Aggregation, Cg>},
    {"aggregation bicgstab", plain<Aggregation, Bicgstab>},
    {"ruge_stuben cg", plain<RugeStuben, Cg>},
    {"ruge_stuben bicgstab", plain<RugeStuben, Bicgstab>},
    {"modes cg", with_modes<Cg>},
    {"modes_block cg", with_modes_in_blocks<CgOfBlocks>},
};

void answer(System& s, const std::string& line, const char* out)
{
    std::istringstream words(line);
    std::string setting, method;
    Order order{};
    if (!(words >> setting >> method >> order.rtol >> order.most))
        throw std::runtime_error("SETTING METHOD RTOL MOST are expected");
    const auto found = SOLVERS.find(setting + " " + method);
    if (found == SOLVERS.end())
        throw std::runtime_error("there is no setting " + setting + " with " + method);
    const Outcome outcome = found->second(s, order);
    std::FILE* file = std::fopen(out, "wb");
    if (!file || std::fwrite(s.x.data(), sizeof(double), s.x.size(), file) != s.x.size())
        throw std::runtime_error("x cannot be written");
    std::fclose(file);
    std::cout << outcome.iterations << " " << outcome.setup << " " << outcome.solve << std::endl;
}

int main(int argc, char** argv)
{
    if (argc != 3) {
        std::cerr << "usage: " << argv[0] << " SYSTEM X\n";
        return 2;
    }
    System s = read_system(argv[1]);
    std::cout << "ready" << std::endl;
    for (std::string line; std::getline(std::cin, line);) {
        try {
            answer(s, line, argv[2]);
        } catch (const std::exception& error) {
            std::cout << "failed: " << error.what() << std::endl;
        }
    }
}
