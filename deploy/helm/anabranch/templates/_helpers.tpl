{{- define "anabranch.name" -}}{{ .Release.Name | trunc 40 | trimSuffix "-" }}{{- end }}

{{- define "anabranch.labels" -}}
app.kubernetes.io/name: anabranch
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ .Chart.Name }}-{{ .Chart.Version }}
{{- end }}

{{- define "anabranch.selector" -}}
app.kubernetes.io/name: anabranch
app.kubernetes.io/instance: {{ .root.Release.Name }}
app.kubernetes.io/component: {{ .part }}
{{- end }}

{{- define "anabranch.required" -}}
{{- $v := .Values }}
{{- if not $v.cluster.adminUrl }}{{ fail "cluster.adminUrl is required: the admin URL of Pulsar" }}{{ end }}
{{- if not $v.kafka.bootstrap }}{{ fail "kafka.bootstrap is required: host:port of Kafka" }}{{ end }}
{{- if not $v.lake.path }}{{ fail "lake.path is required: s3://bucket/folder, or /lake with lake.existingClaim" }}{{ end }}
{{- if not $v.cluster.tokenSecret }}{{ fail "cluster.tokenSecret is required: a Secret with the key token, or none" }}{{ end }}
{{- if not (or $v.lake.credentialsSecret $v.lake.existingClaim) }}{{ fail "lake.credentialsSecret or lake.existingClaim is required: how the lake is reached" }}{{ end }}
{{- end }}

{{- /* Put the variables ANABRANCH_SECTION__KEY of a tree of settings into a dictionary; later ones win. */ -}}
{{- define "anabranch.flatten" -}}
{{- $prefix := .prefix }}
{{- $into := .into }}
{{- range $key, $value := .tree }}
{{- if and (kindIs "map" $value) (ne $key "namespaces") }}
{{- include "anabranch.flatten" (dict "into" $into "prefix" (printf "%s%s__" $prefix $key) "tree" $value) }}
{{- else }}
{{- $_ := set $into (printf "%s%s" $prefix $key | upper) (kindIs "string" $value | ternary $value ($value | toJson)) }}
{{- end }}
{{- end }}
{{- end }}

{{- define "anabranch.settings" -}}
{{- $v := .root.Values }}
{{- $remote := contains "://" $v.lake.path }}
{{- $own := dict
  "metrics" (dict "host" "0.0.0.0")
  "log" (dict "format" "json")
  "lake" (dict "path" $v.lake.path "compact_minutes" ($remote | ternary 2 10))
  "kafka" (dict "security_protocol" $v.kafka.securityProtocol)
  "bundles" (dict "enabled" $v.bundles.enabled)
  "executor" (dict "mode" $v.executor.mode "poll_ms" ($remote | ternary 5000 1000) "lease_seconds" ($remote | ternary 75 20) "metrics_port" 9464 "brakes" (dict "actions_per_minute" $v.executor.actionsPerMinute))
  "stream" (dict "checkpoint" "/var/lib/anabranch/checkpoint" "spark_conf" "/etc/anabranch/spark.conf" "metrics_port" 9464)
  "collect" (dict "folder" "/var/lib/anabranch/collect" "metrics_port" 9464)
  "alerts" (dict "metrics_port" 9464)
  "web" (dict "metrics_port" 9464)
  "local" (dict "folder" "/var/lib/anabranch" "jars" "/opt/anabranch/jars") }}
{{- if $v.policy }}{{ $_ := set $own "policy" (dict "cluster" "/etc/anabranch/policy.toml") }}{{ end }}
{{- if $v.alertRules }}{{ $_ := set (get $own "alerts") "rules" "/etc/anabranch/alerts.yaml" }}{{ end }}
{{- if $v.page.tokensSecret }}{{ $_ := set (get $own "web") "host" "0.0.0.0" }}{{ $_ := set (get $own "web") "tokens_file" "/etc/anabranch-tokens/tokens" }}{{ $service := printf "%s-page" (include "anabranch.name" .root) }}{{ $_ := set (get $own "web") "names" (list $service (printf "%s.%s" $service .root.Release.Namespace) (printf "%s.%s.svc" $service .root.Release.Namespace)) }}{{ end }}
{{- $variables := dict }}
{{- range list $own $v.settings }}
{{- include "anabranch.flatten" (dict "into" $variables "prefix" "ANABRANCH_" "tree" .) }}
{{- end }}
{{- range $name, $value := $variables }}
- name: {{ $name }}
  value: {{ $value | quote }}
{{- end }}
- name: ANABRANCH_HOME
  value: /var/lib/anabranch
- name: ANABRANCH_CONTROLLER_URL
  value: {{ $v.cluster.adminUrl | quote }}
- name: ANABRANCH_KAFKA_BOOTSTRAP
  value: {{ $v.kafka.bootstrap | quote }}
{{- with $v.kafka.username }}
- name: ANABRANCH_KAFKA_USERNAME
  value: {{ . | quote }}
{{- end }}
{{- with $v.kafka.passwordSecret }}
- name: ANABRANCH_KAFKA_PASSWORD
  valueFrom: {secretKeyRef: {name: {{ . }}, key: password}}
{{- end }}
{{- if ne $v.cluster.tokenSecret "none" }}
- name: ANABRANCH_CONTROLLER_TOKEN
  valueFrom: {secretKeyRef: {name: {{ $v.cluster.tokenSecret }}, key: token}}
{{- end }}
{{- end }}

{{- define "anabranch.container" -}}
{{- $v := .root.Values }}
image: "{{ .image | default $v.image.repository }}:{{ $v.image.tag | default .root.Chart.AppVersion }}"
imagePullPolicy: {{ $v.image.pullPolicy }}
securityContext:
  allowPrivilegeEscalation: false
  readOnlyRootFilesystem: true
  capabilities: {drop: [ALL]}
env:
{{- include "anabranch.settings" . | nindent 2 }}
{{- with $v.lake.credentialsSecret }}
envFrom:
  - secretRef: {name: {{ . }}}
{{- end }}
volumeMounts:
  - {name: files, mountPath: /etc/anabranch, readOnly: true}
  - {name: scratch, mountPath: /tmp}
  - {name: state, mountPath: /var/lib/anabranch}
{{- if $v.lake.existingClaim }}
  - {name: lake, mountPath: /lake}
{{- end }}
{{- if and $v.page.tokensSecret (eq .part "page") }}
  - {name: tokens, mountPath: /etc/anabranch-tokens, readOnly: true}
{{- end }}
{{- end }}

{{- define "anabranch.probes" -}}
ports:
  - {name: metrics, containerPort: 9464}
startupProbe:
  httpGet: {path: /livez, port: metrics}
  periodSeconds: 5
  failureThreshold: 60
livenessProbe:
  httpGet: {path: /livez, port: metrics}
  periodSeconds: 15
  timeoutSeconds: 6
  failureThreshold: 4
readinessProbe:
  httpGet: {path: /readyz, port: metrics}
  periodSeconds: 10
  timeoutSeconds: 6
{{- end }}

{{- define "anabranch.pod" -}}
{{- $v := .root.Values }}
serviceAccountName: {{ include "anabranch.name" .root }}
automountServiceAccountToken: false
enableServiceLinks: false
securityContext:
  runAsNonRoot: true
  runAsUser: 10001
  runAsGroup: 10001
  fsGroup: 10001
  seccompProfile: {type: RuntimeDefault}
{{- with $v.image.pullSecrets }}
imagePullSecrets: {{ toYaml . | nindent 2 }}
{{- end }}
{{- with $v.nodeSelector }}
nodeSelector: {{ toYaml . | nindent 2 }}
{{- end }}
{{- with $v.tolerations }}
tolerations: {{ toYaml . | nindent 2 }}
{{- end }}
{{- with $v.affinity }}
affinity: {{ toYaml . | nindent 2 }}
{{- end }}
{{- end }}

{{- define "anabranch.volumes" -}}
- name: files
  configMap: {name: {{ .files | default (include "anabranch.name" .root) }}}
- name: scratch
  emptyDir: {}
{{- if not .keepsState }}
- name: state
  emptyDir: {}
{{- end }}
{{- with .root.Values.lake.existingClaim }}
- name: lake
  persistentVolumeClaim: {claimName: {{ . }}}
{{- end }}
{{- if and .root.Values.page.tokensSecret (eq .part "page") }}
- name: tokens
  secret: {secretName: {{ .root.Values.page.tokensSecret }}, defaultMode: 0440}
{{- end }}
{{- end }}

{{- define "anabranch.files" -}}
{{- $job := .Values.job }}
spark.conf: |
{{- $conf := .Files.Get "files/spark.conf" }}
{{- $conf = regexReplaceAll "(?m)^(spark\\.master +).*$" $conf (printf "${1}local[%v]" $job.cpus) }}
{{- $conf = regexReplaceAll "(?m)^(spark\\.driver\\.memory +).*$" $conf (printf "${1}%s" $job.driverMemory) }}
{{- $conf = regexReplaceAll "(?m)^(spark\\.sql\\.shuffle\\.partitions +).*$" $conf (printf "${1}%v" $job.cpus) }}
{{ $conf | indent 2 }}
{{- with .Values.policy }}
policy.toml: |
{{ . | indent 2 }}
{{- end }}
{{- with .Values.alertRules }}
alerts.yaml: |
{{ . | indent 2 }}
{{- end }}
{{- end }}
