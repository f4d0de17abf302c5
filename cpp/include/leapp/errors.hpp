// The exceptions of this library. Messages say what happened, where, and what to do next; they are those of the Python runtime.
#pragma once

#include <stdexcept>
#include <string>

namespace leapp {

/// Base class of every exception thrown on purpose.
class Error : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// A bundle is malformed, inconsistent, tampered with or not allowed, or its engine failed.
class BundleError : public Error {
 public:
  using Error::Error;
};

/// A file that a bundle names does not exist.
class BundleFileError : public BundleError {
 public:
  using BundleError::BundleError;
};

/// A value given to a pipeline does not fit its port.
class InputError : public Error {
 public:
  using Error::Error;
};

/// A key names no port of the pipeline.
class UnknownPortError : public Error {
 public:
  using Error::Error;
};

}  // namespace leapp
