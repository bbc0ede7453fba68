variable "name" {
  description = "Name of the deployment."
  type        = string
}

variable "region" {
  description = "The region that everything runs in."
  type        = string
}

variable "api_name" {
  description = "Name of the REST API, as its metrics carry it."
  type        = string
}

variable "stage" {
  description = "Name of the API's stage."
  type        = string
}

variable "functions" {
  description = "Full names of the functions, by short name."
  type        = map(string)
}

variable "queues" {
  description = "Full names of the queues, by short name."
  type        = map(string)
}

variable "dead_letter_queues" {
  description = "Full names of the dead-letter queues, by the short name of their queue."
  type        = map(string)
}

variable "message_age_max_seconds" {
  description = "How old a message may grow before an alarm, by short name of its queue."
  type        = map(number)
}

variable "models" {
  description = "Ids of the models."
  type        = list(string)
}

variable "profiles" {
  description = "Names of the groups of workers."
  type        = list(string)
}

variable "topic_arns" {
  description = "SNS topics that alarms are sent to."
  type        = list(string)
}

variable "alarms_enabled" {
  description = "Whether there are alarms."
  type        = bool
}

variable "dashboard_enabled" {
  description = "Whether there is a dashboard."
  type        = bool
}
