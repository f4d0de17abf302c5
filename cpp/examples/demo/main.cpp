// The quadruped of `make demo` in C++: demo exports/quadruped
#include <cstdio>
#include <leapp/leapp.hpp>

int main(int count, char** words) {
  try {
    auto policy = leapp::open(count > 1 ? words[1] : "exports/quadruped");
    for (const leapp::PortInfo& port : policy.ports()) {
      std::printf("%-8s %-24s %s %s\n", port.role.c_str(), port.key.c_str(), port.dtype.c_str(),
                  port.kind.value_or("").c_str());
    }

    // The robot has its legs in another order. Names are compared once; from here on values are in the robot's order.
    const std::vector<std::string> joints = {"RR_hip", "RR_thigh", "RR_calf", "RL_hip", "RL_thigh", "RL_calf",
                                             "FR_hip", "FR_thigh", "FR_calf", "FL_hip", "FL_thigh", "FL_calf"};
    policy.bind({{"observe/position", joints}, {"observe/velocity", joints}}, {{"act/targets", joints}});

    if (const leapp::Verification found = policy.verify(); !found.passed()) {
      for (const std::string& problem : found.problems) std::printf("%s\n", problem.c_str());
      return 1;
    }

    auto rotation = policy.input<float>("observe/rotation");
    auto turn_rate = policy.input<float>("observe/turn_rate");
    auto command = policy.input<float>("observe/command");
    auto position = policy.input<float>("observe/position");
    auto velocity = policy.input<float>("observe/velocity");
    const auto targets = policy.output<float>("act/targets");

    std::array<float, 12> at{}, moved{};
    for (int step = 0; step < 500; ++step) {
      rotation.set(std::array<float, 4>{1, 0, 0, 0});
      turn_rate.set(std::array<float, 3>{0, 0, 0});
      command.set(std::array<float, 3>{0.5f, 0, 0});
      position.set(at);
      velocity.set(moved);
      policy.step();
      for (std::size_t joint = 0; joint < joints.size(); ++joint) {  // a robot that follows slowly
        moved[joint] = 5.0f * (targets[joint] - at[joint]);
        at[joint] += 0.02f * moved[joint];
      }
    }
    for (std::size_t joint = 0; joint < joints.size(); ++joint)
      std::printf("%s %+.4f\n", joints[joint].c_str(), targets[joint]);

    const leapp::Latency times = policy.bench(2000);
    std::printf("median of a step: %.1f us, 99.9 %%: %.1f us\n", times.p50, times.p999);
  } catch (const leapp::Error& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
}
