{{/* tailpost.toml: values.config, and over it what the other values say. */}}
{{- define "tailpost.toml" -}}
{{- $nats := dict "url" .Values.nats.url }}
{{- $postgres := dict }}
{{- with .Values.nats.credsSecret }}{{ if .name }}
{{- $_ := set $nats "creds" (printf "/run/secrets/tailpost/nats-creds/%s" .key) }}
{{- end }}{{ end }}
{{- with .Values.nats.tlsSecret }}{{ if .name }}
{{- range $setting, $file := dict "ca" .ca "cert" .cert "key" .key }}{{ if $file }}
{{- $_ := set $nats $setting (printf "/run/secrets/tailpost/nats-tls/%s" $file) }}
{{- end }}{{ end }}
{{- end }}{{ end }}
{{- with .Values.postgres.tlsSecret }}{{ if .name }}
{{- range $setting, $file := dict "sslrootcert" .ca "sslcert" .cert "sslkey" .key }}{{ if $file }}
{{- $_ := set $postgres $setting (printf "/run/secrets/tailpost/postgres-tls/%s" $file) }}
{{- end }}{{ end }}
{{- end }}{{ end }}
{{- $tokens := list }}
{{- range .Values.admin.roles }}
{{- $tokens = append $tokens (dict "file" (printf "/run/secrets/tailpost/tokens/%s" .) "role" .) }}
{{- end }}
{{- $admin := dict "listen" (printf "0.0.0.0:%d" (int .Values.admin.relayPort)) "inbox_listen" (printf "0.0.0.0:%d" (int .Values.admin.inboxPort)) "tokens" $tokens }}
{{- $inbox := deepCopy .Values.inboxDefaults.config }}
{{- range $consumer, $of := .Values.inboxes }}
{{- $_ := set $inbox $consumer (mergeOverwrite (deepCopy (default dict $of.config)) (dict "handler" $of.handler)) }}
{{- end }}
{{- $ours := dict "nats" $nats "postgres" $postgres "admin" $admin "inbox" $inbox }}
{{- $all := mergeOverwrite (dict "log" (dict "format" "json")) (deepCopy .Values.config) $ours }}
{{- include "tailpost.section" (dict "path" "" "table" $all) | trim }}
{{- range .Values.routes }}

[[route]]
{{- range $key, $value := . }}
{{ $key }} = {{ include "tailpost.value" $value }}
{{- end }}
{{- end }}
{{- end }}

{{/* A table of TOML: first its settings, then the tables in it. */}}
{{- define "tailpost.section" -}}
{{- $path := .path }}
{{- $settings := dict }}
{{- $tables := dict }}
{{- range $key, $value := .table }}
{{- if kindIs "map" $value }}{{ $_ := set $tables $key $value }}{{ else if not (kindIs "invalid" $value) }}{{ $_ := set $settings $key $value }}{{ end }}
{{- end }}
{{- if and $path $settings }}
[{{ $path }}]
{{- end }}
{{- range $key, $value := $settings }}
{{ $key }} = {{ include "tailpost.value" $value }}
{{- end }}
{{- range $key, $value := $tables }}
{{- $name := ternary $key (toJson $key) (regexMatch "^[A-Za-z0-9_-]+$" $key) }}
{{ include "tailpost.section" (dict "path" (ternary (printf "%s.%s" $path $name) $name (ne $path "")) "table" $value) }}
{{- end }}
{{- end }}

{{/* YAML has one kind of number, TOML two. */}}
{{- define "tailpost.value" -}}
{{- if kindIs "slice" . }}
{{- $items := list }}
{{- range . }}{{ $items = append $items (include "tailpost.value" .) }}{{ end }}
{{- printf "[%s]" (join ", " $items) }}
{{- else if kindIs "map" . }}
{{- $items := list }}
{{- range $key, $value := . }}{{ $items = append $items (printf "%s = %s" $key (include "tailpost.value" $value)) }}{{ end }}
{{- printf "{ %s }" (join ", " $items) }}
{{- else if and (kindIs "float64" .) (eq (floor .) .) }}
{{- printf "%d" (int64 .) }}
{{- else }}
{{- toRawJson . }}
{{- end }}
{{- end }}
