// A ros2_control controller that runs a bundle. Never compiled by the authors of leapp; see README.md.
#include <controller_interface/controller_interface.hpp>
#include <geometry_msgs/msg/twist.hpp>
#include <leapp/leapp.hpp>
#include <pluginlib/class_list_macros.hpp>
#include <rclcpp_lifecycle/state.hpp>
#include <realtime_tools/realtime_buffer.hpp>

namespace leapp_controller {

using controller_interface::CallbackReturn;
using controller_interface::interface_configuration_type;
using controller_interface::InterfaceConfiguration;
using controller_interface::return_type;
using geometry_msgs::msg::Twist;

class LeappController : public controller_interface::ControllerInterface {
 public:
  CallbackReturn on_init() override {
    auto_declare<std::string>("bundle", "");
    auto_declare<std::vector<std::string>>("joints", {});
    auto_declare<std::string>("imu", "imu_sensor");
    return CallbackReturn::SUCCESS;
  }

  InterfaceConfiguration command_interface_configuration() const override {
    return {interface_configuration_type::INDIVIDUAL, of_joints("/position")};
  }

  InterfaceConfiguration state_interface_configuration() const override {
    auto names = of_joints("/position");
    for (const std::string& name : of_joints("/velocity")) names.push_back(name);
    const std::string imu = get_node()->get_parameter("imu").as_string();
    for (const char* axis : {"w", "x", "y", "z"}) names.push_back(imu + "/orientation." + axis);
    for (const char* axis : {"x", "y", "z"}) names.push_back(imu + "/angular_velocity." + axis);
    return {interface_configuration_type::INDIVIDUAL, names};
  }

  CallbackReturn on_configure(const rclcpp_lifecycle::State&) override {
    try {
      joints_ = get_node()->get_parameter("joints").as_string_array();
      policy_.emplace(leapp::open(get_node()->get_parameter("bundle").as_string()));
      // Interfaces arrive in the order of state_interface_configuration.
      const std::size_t count = joints_.size();
      sources_ = {
          {input("state/joint/position", joints_), 0},
          {input("state/joint/velocity", joints_), count},
          {input("state/body/rotation", {"w", "x", "y", "z"}), 2 * count},
          {input("state/body/angular_velocity", {"x", "y", "z"}), 2 * count + 4},
      };
      command_.emplace(input("command/body/velocity", {"x", "y", "yaw"}));
      const std::string target = only("output", "target/joint/position");
      policy_->bind_output(target, joints_);
      targets_.emplace(policy_->output<float>(target));
      if (policy_->inputs().size() != sources_.size() + 1) {
        RCLCPP_ERROR(get_node()->get_logger(), "the bundle has inputs that this controller does not know");
        return CallbackReturn::ERROR;
      }
      policy_->warm_up();
    } catch (const leapp::Error& error) {
      RCLCPP_ERROR(get_node()->get_logger(), "%s", error.what());
      return CallbackReturn::ERROR;
    }
    wanted_.writeFromNonRT(Twist());
    subscription_ = get_node()->create_subscription<Twist>(
        "~/cmd_vel", rclcpp::SystemDefaultsQoS(), [this](const Twist::SharedPtr message) { wanted_.writeFromNonRT(*message); });
    return CallbackReturn::SUCCESS;
  }

  CallbackReturn on_activate(const rclcpp_lifecycle::State&) override {
    policy_->reset();
    return CallbackReturn::SUCCESS;
  }

  return_type update(const rclcpp::Time&, const rclcpp::Duration&) override {
    for (auto& [port, first] : sources_) {
      float* values = port.write();
      for (std::size_t i = 0; i < port.size(); ++i) values[i] = static_cast<float>(state_interfaces_[first + i].get_value());
    }
    const Twist& wanted = *wanted_.readFromRT();
    float* command = command_->write();
    command[0] = static_cast<float>(wanted.linear.x);
    command[1] = static_cast<float>(wanted.linear.y);
    command[2] = static_cast<float>(wanted.angular.z);
    try {
      policy_->step();
    } catch (const leapp::Error& error) {
      RCLCPP_ERROR(get_node()->get_logger(), "%s", error.what());
      return return_type::ERROR;
    }
    for (std::size_t joint = 0; joint < joints_.size(); ++joint) command_interfaces_[joint].set_value((*targets_)[joint]);
    return return_type::OK;
  }

 private:
  std::vector<std::string> of_joints(const std::string& interface) const {
    std::vector<std::string> names;
    for (const std::string& joint : get_node()->get_parameter("joints").as_string_array()) names.push_back(joint + interface);
    return names;
  }

  /// The key of the only port of a kind.
  std::string only(const std::string& role, const std::string& kind) const {
    const auto found = policy_->ports_by_kind(role, kind);
    if (found.size() != 1)
      throw leapp::BundleError("the bundle has " + std::to_string(found.size()) + " ports of kind " + kind);
    return found[0].key;
  }

  leapp::Input<float> input(const std::string& kind, const std::vector<std::string>& names) {
    const std::string key = only("input", kind);
    policy_->bind_input(key, names);
    return policy_->input<float>(key);
  }

  std::vector<std::string> joints_;
  std::optional<leapp::Pipeline> policy_;
  std::vector<std::pair<leapp::Input<float>, std::size_t>> sources_;
  std::optional<leapp::Input<float>> command_;
  std::optional<leapp::Output<float>> targets_;
  realtime_tools::RealtimeBuffer<Twist> wanted_;
  rclcpp::Subscription<Twist>::SharedPtr subscription_;
};

}  // namespace leapp_controller

PLUGINLIB_EXPORT_CLASS(leapp_controller::LeappController, controller_interface::ControllerInterface)
