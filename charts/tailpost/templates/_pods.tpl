{{/* What all pods have. `root`, `component`, `consumer` (or empty), and `hook` if it is one. */}}
{{- define "tailpost.podMetadata" -}}
labels:
  {{- include "tailpost.labels" .root | nindent 2 }}
  app.kubernetes.io/component: {{ .component }}
  {{- with .consumer }}
  tailpost/consumer: {{ . | quote }}
  {{- end }}
  {{- with .root.Values.podLabels }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
annotations:
  # A changed configuration replaces the pods.
  checksum/config: {{ include "tailpost.toml" .root | sha256sum }}
  {{- with .root.Values.podAnnotations }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
{{- end }}

{{- define "tailpost.podSecurity" -}}
automountServiceAccountToken: false
# Variables such as TAILPOST_PORT, which Kubernetes makes of a service's name, are no settings.
enableServiceLinks: false
securityContext:
  runAsNonRoot: true
  runAsUser: 65532
  runAsGroup: 65532
  fsGroup: 65532
  seccompProfile: { type: RuntimeDefault }
{{- with .Values.imagePullSecrets }}
imagePullSecrets:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.priorityClassName }}
priorityClassName: {{ . }}
{{- end }}
{{- with .Values.nodeSelector }}
nodeSelector:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.tolerations }}
tolerations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.affinity }}
affinity:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}

{{/* Replicas are there for the day on which a node goes. */}}
{{- define "tailpost.spread" -}}
topologySpreadConstraints:
{{- if .root.Values.topologySpreadConstraints }}
  {{- toYaml .root.Values.topologySpreadConstraints | nindent 2 }}
{{- else }}
  - maxSkew: 1
    topologyKey: kubernetes.io/hostname
    whenUnsatisfiable: ScheduleAnyway
    labelSelector:
      matchLabels:
        {{- include "tailpost.selector" .root | nindent 8 }}
        app.kubernetes.io/component: {{ .component }}
        {{- with .consumer }}
        tailpost/consumer: {{ . | quote }}
        {{- end }}
{{- end }}
{{- end }}

{{- define "tailpost.container" -}}
image: {{ include "tailpost.image" . }}
imagePullPolicy: {{ .Values.image.pullPolicy }}
securityContext:
  allowPrivilegeEscalation: false
  readOnlyRootFilesystem: true
  runAsNonRoot: true
  capabilities: { drop: [ALL] }
  seccompProfile: { type: RuntimeDefault }
{{- end }}

{{/* `root`, and `url`: a secret with the database's URL. */}}
{{- define "tailpost.env" -}}
- { name: TAILPOST_CONFIG, value: /etc/tailpost/tailpost.toml }
- name: DATABASE_URL
  valueFrom:
    secretKeyRef:
      name: {{ required "postgres.urlSecret.name: name a secret that holds the database's URL" .url.name }}
      key: {{ .url.key }}
{{- with .root.Values.nats.passwordSecret }}{{ if .name }}
- name: TAILPOST_NATS__PASSWORD
  valueFrom: { secretKeyRef: { name: {{ .name }}, key: {{ .key }} } }
{{- end }}{{ end }}
{{- with .root.Values.nats.tokenSecret }}{{ if .name }}
- name: TAILPOST_NATS__TOKEN
  valueFrom: { secretKeyRef: { name: {{ .name }}, key: {{ .key }} } }
{{- end }}{{ end }}
{{- with .root.Values.extraEnv }}
{{ toYaml . }}
{{- end }}
{{- end }}

{{- define "tailpost.mounts" -}}
- { name: config, mountPath: /etc/tailpost, readOnly: true }
- { name: tokens, mountPath: /run/secrets/tailpost/tokens, readOnly: true }
{{- if .Values.postgres.tlsSecret.name }}
- { name: postgres-tls, mountPath: /run/secrets/tailpost/postgres-tls, readOnly: true }
{{- end }}
{{- if .Values.nats.tlsSecret.name }}
- { name: nats-tls, mountPath: /run/secrets/tailpost/nats-tls, readOnly: true }
{{- end }}
{{- if .Values.nats.credsSecret.name }}
- { name: nats-creds, mountPath: /run/secrets/tailpost/nats-creds, readOnly: true }
{{- end }}
{{- with .Values.extraVolumeMounts }}
{{ toYaml . }}
{{- end }}
{{- end }}

{{/* `root`, and the ConfigMap's name as `config`. */}}
{{- define "tailpost.volumes" -}}
- name: config
  configMap: { name: {{ .config }} }
- name: tokens
  secret:
    secretName: {{ required "admin.tokensSecret: name a secret that holds a token for each of admin.roles" .root.Values.admin.tokensSecret }}
    defaultMode: 0440
    items:
      {{- range .root.Values.admin.roles }}
      - { key: {{ . }}, path: {{ . }} }
      {{- end }}
{{- range $name, $secret := dict "postgres-tls" .root.Values.postgres.tlsSecret "nats-tls" .root.Values.nats.tlsSecret "nats-creds" .root.Values.nats.credsSecret }}
{{- if $secret.name }}
- name: {{ $name }}
  secret: { secretName: {{ $secret.name }}, defaultMode: 0440 }
{{- end }}
{{- end }}
{{- with .root.Values.extraVolumes }}
{{ toYaml . }}
{{- end }}
{{- end }}

{{/* A restart mends no outage of a server: only a process that does not answer is restarted. */}}
{{- define "tailpost.probes" -}}
startupProbe:
  httpGet: { path: /livez, port: admin }
  periodSeconds: 1
  failureThreshold: 60
livenessProbe:
  httpGet: { path: /livez, port: admin }
  periodSeconds: 10
  timeoutSeconds: 5
  failureThreshold: 6
readinessProbe:
  httpGet: { path: /readyz, port: admin }
  periodSeconds: 5
  timeoutSeconds: 5
{{- end }}
