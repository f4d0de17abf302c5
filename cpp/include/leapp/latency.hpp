// How long a step takes, and how often it would be late. The figures are those of src/leapp/runtime/bench.py.
#pragma once

#include <algorithm>
#include <chrono>
#include <cmath>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

namespace leapp {

/// Times of a run, in microseconds.
struct Latency {
  std::size_t steps = 0;
  double p50 = 0, p99 = 0, p999 = 0, longest = 0, jitter = 0;
  std::optional<double> rate;            ///< The rate the steps were started at, in hertz.
  std::optional<std::size_t> misses;     ///< Steps that were not done one period after they were due.
  double noise_p50 = 0, noise_p999 = 0;  ///< The same loop around nothing: the clock and the machine.
  std::optional<std::size_t> noise_misses;
};

namespace detail {

template <class Work>
std::pair<std::vector<double>, std::size_t> timed(std::size_t steps, std::optional<double> rate, Work work) {
  using Clock = std::chrono::steady_clock;
  using Microseconds = std::chrono::duration<double, std::micro>;
  std::vector<double> times(steps);
  std::size_t misses = 0;
  const std::chrono::duration<double> seconds(rate ? 1.0 / *rate : 0.0);
  const auto period = std::chrono::duration_cast<Clock::duration>(seconds);
  const auto begin = Clock::now();
  for (std::size_t i = 0; i < steps; ++i) {
    const auto due = begin + period * static_cast<Clock::rep>(i);
    // Sleeping overshoots by about as much as it takes to wake up, so the last stretch is waited for awake.
    while (rate && Clock::now() < due) {
      const auto rest = due - Clock::now();
      if (rest > std::chrono::microseconds(200)) std::this_thread::sleep_for(rest - std::chrono::microseconds(100));
    }
    const auto start = Clock::now();
    work();
    const auto end = Clock::now();
    times[i] = std::chrono::duration_cast<Microseconds>(end - start).count();
    misses += rate && end > due + period;
  }
  std::sort(times.begin(), times.end());
  return {times, misses};
}

inline double percentile(const std::vector<double>& sorted, double percent) {
  const double at = percent / 100 * static_cast<double>(sorted.size() - 1);
  const auto low = static_cast<std::size_t>(at);
  const std::size_t high = std::min(low + 1, sorted.size() - 1);
  return sorted[low] + (at - static_cast<double>(low)) * (sorted[high] - sorted[low]);
}

/// Time a step. With a rate, in hertz, steps start when they are due, as in a control loop.
template <class Work>
Latency measure(std::size_t steps, std::optional<double> rate, Work work) {
  const auto [times, misses] = timed(steps, rate, work);
  const auto [noise, late] = timed(steps, rate, [] {});
  double mean = 0, square = 0;
  for (const double time : times) mean += time / static_cast<double>(steps);
  for (const double time : times) square += (time - mean) * (time - mean) / static_cast<double>(steps);
  Latency made;
  made.steps = steps;
  made.p50 = percentile(times, 50), made.p99 = percentile(times, 99), made.p999 = percentile(times, 99.9);
  made.longest = times.back(), made.jitter = std::sqrt(square), made.rate = rate;
  made.noise_p50 = percentile(noise, 50), made.noise_p999 = percentile(noise, 99.9);
  if (rate) made.misses = misses, made.noise_misses = late;
  return made;
}

}  // namespace detail

}  // namespace leapp
